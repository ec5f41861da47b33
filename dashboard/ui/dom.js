// Elements. Data of the gateway becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `on` holds listeners, `class` and the others are attributes; null and false leave one out. */
export function h(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(element, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Puts other children in place of those of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  return element;
}

/** Lets keys and names break after their marks, and nowhere else. */
export function allowBreaks(element) {
  for (const child of [...element.childNodes]) {
    if (child.nodeType === Node.ELEMENT_NODE) allowBreaks(child);
    else if (/\S[/.:_]\S/.test(child.data)) {
      const parts = child.data.split(/(?<=\S[/.:_])(?=[^\s\d])/);
      child.replaceWith(...parts.flatMap((part, at) => (at > 0 ? [document.createElement("wbr"), part] : [part])));
    }
  }
  return element;
}

let numbers = 0;

/** An id that no other element has. */
export function unique(prefix) {
  numbers += 1;
  return `${prefix}-${numbers}`;
}

/** Shows a message for some seconds; screen readers read it out. */
export function announce(text) {
  const status = document.getElementById("status");
  status.textContent = text;
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => status.replaceChildren(), 6_000);
}
