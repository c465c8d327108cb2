// The parts of a page whose looks are compared, each with its place: what is in a scrolling box counts as far as it shows.
[...document.querySelectorAll("h1, main > ul, .verdict, table, h2, section > p, .arm > ol, .stacks, .bytes, svg, footer")]
  .filter((element) => element.checkVisibility({ visibilityProperty: true }))
  .map((element) => {
    const own = element.getBoundingClientRect();
    const around = (element.closest(".scroll") ?? element).getBoundingClientRect();
    const [left, right] = [Math.max(own.left, around.left), Math.min(own.right, around.right)];
    return {
      name: `${element.tagName.toLowerCase()}.${element.getAttribute("class") ?? ""}`,
      kind: element.matches("svg") ? "drawing" : element.matches("table, ol, .stacks") ? "columns" : "prose",
      x: Math.round(left + scrollX), y: Math.round(own.top + scrollY),
      width: Math.round(right - left), height: Math.round(own.height),
    };
  })
