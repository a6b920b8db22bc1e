// Looks at what a reader sees: contrast of each text with its ground, and what does not fit.
(() => {
  const numbers = (color) => (color.match(/[\d.]+/g) ?? []).map(Number);
  const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (element) => {
    for (let each = element; each !== null; each = each.parentElement) {
      const color = numbers(getComputedStyle(each).backgroundColor);
      if (color.length === 3) return color;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
    const element = node.parentElement;
    const box = element.getBoundingClientRect();
    if (node.data.trim() === "" || box.width < 2 || !element.checkVisibility()) continue;
    if (["script", "style", "title", "noscript"].includes(element.localName)) continue;
    const style = getComputedStyle(element);
    const ink = numbers(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const [light, dark] = [luminance(ink), luminance(ground(element))].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    texts += 1;
    if (contrast < 4.5) faint.push(node.data.trim() + ": " + contrast.toFixed(2));
  }
  const cut = [];
  for (const element of document.querySelectorAll("body *")) {
    if (element.namespaceURI.endsWith("svg") || element.closest(".unseen, thead") !== null) continue;
    const box = element.getBoundingClientRect();
    if (box.right > innerWidth + 1 || box.left < -1) cut.push(element.outerHTML.slice(0, 200));
  }
  return { texts, faint, cut, width: document.documentElement.scrollWidth, inner: innerWidth };
})()
