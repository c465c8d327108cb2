// What a reader would see, as plain values. Evaluated in a page; the last expression is an object of functions.
(() => {
  const PIXELS_MIN = 10.5, CONTRAST_MIN = 4.5, CONTRAST_MIN_LARGE = 3;
  const isShown = (element) => element.checkVisibility() && element.getClientRects().length > 0;

  // Every element that has text of its own.
  const texts = () => [...document.querySelectorAll("body *")].filter((element) =>
    !["STYLE", "SCRIPT", "TITLE"].includes(element.tagName) && isShown(element) &&
    [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()));

  const isDrawn = (element) => element instanceof SVGElement;
  const scale = (element) => (isDrawn(element) ? element.getScreenCTM().a : 1);
  const pixels = (element) => parseFloat(getComputedStyle(element).fontSize) * scale(element);
  const name = (element) => `<${element.tagName.toLowerCase()} class="${element.getAttribute("class") ?? ""}"> ` +
    element.textContent.trim().slice(0, 40);

  const parsed = (colour) => {
    const parts = colour.match(/[\d.]+/g).map(Number);
    return { red: parts[0], green: parts[1], blue: parts[2], alpha: parts.length > 3 ? parts[3] : 1 };
  };
  const light = ({ red, green, blue }) => {
    const [r, g, b] = [red, green, blue].map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [bright, dim] = [light(one), light(other)].sort((a, b) => b - a);
    return (bright + 0.05) / (dim + 0.05);
  };

  const groundOfBoxes = (element) => {
    for (let box = element; box; box = box.parentElement) {
      const colour = parsed(getComputedStyle(box).backgroundColor);
      if (colour.alpha > 0) return colour;
    }
    return parsed("rgb(255, 255, 255)");
  };
  const holds = (rect, x, y) => rect.left <= x && x <= rect.right && rect.top <= y && y <= rect.bottom;
  // In a drawing the ground is the last shape before the text that lies under its middle.
  const groundOfDrawing = (element) => {
    const box = element.getBoundingClientRect();
    const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
    const svg = element.closest("svg");
    const under = [...svg.querySelectorAll("rect, circle")].filter((shape) =>
      shape.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING &&
      getComputedStyle(shape).fill !== "none" && holds(shape.getBoundingClientRect(), x, y));
    return under.length ? parsed(getComputedStyle(under.at(-1)).fill) : groundOfBoxes(svg.parentElement);
  };

  const needed = (element) => {
    const style = getComputedStyle(element);
    const isLarge = pixels(element) >= 24 || (pixels(element) >= 18.66 && style.fontWeight >= 700);
    return isLarge ? CONTRAST_MIN_LARGE : CONTRAST_MIN;
  };
  const contrastOf = (element) => {
    const style = getComputedStyle(element);
    return isDrawn(element) ? contrast(parsed(style.fill), groundOfDrawing(element))
      : contrast(parsed(style.color), groundOfBoxes(element));
  };

  const scrollers = () => [...document.querySelectorAll("body *")].filter((element) =>
    isShown(element) && element.scrollWidth > element.clientWidth + 1 &&
    ["auto", "scroll"].includes(getComputedStyle(element).overflowX));

  return {
    texts: texts().length,
    tooWide: document.documentElement.scrollWidth - window.innerWidth,
    small: texts().filter((each) => pixels(each) < PIXELS_MIN).map((each) => `${pixels(each).toFixed(1)} px ${name(each)}`),
    faint: texts().filter((each) => contrastOf(each) < needed(each))
      .map((each) => `${contrastOf(each).toFixed(2)} ${name(each)}`),
    // Text that is cut off without a way to scroll to it.
    cut: texts().filter((each) => !isDrawn(each) && !each.closest(".scroll") &&
      each.getBoundingClientRect().right > window.innerWidth + 1).map(name),
    // Tables that show a part of themselves only.
    partly: scrollers().filter((each) => each.querySelector("table")).map(name),
    interactive: [...document.querySelectorAll("a[href], button, summary, input, select"), ...scrollers()]
      .filter(isShown).map(name),
  };
})()
