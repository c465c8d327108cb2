// Screenshots as small pictures, so that the shape of letters does not matter. Evaluated in an empty page.
({
  async picture(address) {
    const image = new Image();
    image.src = address;
    await image.decode();
    return image;
  },

  context(width, height) {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [Math.max(1, width), Math.max(1, height)];
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.imageSmoothingQuality = "high";
    return context;
  },

  // Halved until it is small enough: one step would look at few of the pixels.
  resized(source, width, height) {
    while (source.width >= 2 * width && source.height >= 2 * height) {
      const half = this.context(Math.ceil(source.width / 2), Math.ceil(source.height / 2));
      half.drawImage(source, 0, 0, half.canvas.width, half.canvas.height);
      source = half.canvas;
    }
    const last = this.context(width, height);
    last.drawImage(source, 0, 0, last.canvas.width, last.canvas.height);
    return last.canvas;
  },

  cut(image, { x, y, width, height }) {
    const part = this.context(width, height);
    part.drawImage(image, x, y, width, height, 0, 0, width, height);
    return part.canvas;
  },

  async shrunk(address, times) {
    const image = await this.picture(address);
    const small = this.resized(image, Math.round(image.width / times), Math.round(image.height / times));
    return small.toDataURL("image/webp", 0.85);
  },

  // How far the colours of two pages are apart in the mean, part by part.
  async differences(one, boxes, other, boxesOfOther) {
    const [first, second] = [await this.picture(one), await this.picture(other)];
    return boxes.map((box, index) => {
      const [width, height] = [Math.max(1, Math.round(box.width)), Math.max(1, Math.round(box.height))];
      const [a, b] = [this.cut(first, box), this.cut(second, boxesOfOther[index])].map((part) => {
        const blurred = this.context(width, height);
        blurred.filter = "blur(1px)";
        blurred.drawImage(part, 0, 0, width, height);
        return blurred.getImageData(0, 0, width, height).data;
      });
      let apart = 0;
      for (let at = 0; at < a.length; at += 4) {
        apart += Math.max(...[0, 1, 2].map((channel) => Math.abs(a[at + channel] - b[at + channel])));
      }
      return (apart * 4) / a.length;
    });
  },
})
