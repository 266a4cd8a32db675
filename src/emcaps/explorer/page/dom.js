// Elements, sliders and choices: the few helpers that every part of the page uses.

const SVG = "http://www.w3.org/2000/svg";

/** el("p", {class: "note", onclick: f}, "text", child): an HTML element; null children are left out. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A box for what may be wider than the screen; the keyboard can scroll it, too. */
export function scrollBox(label, ...children) {
  return el("div", { class: "scroll", role: "region", "aria-label": label, tabindex: 0 }, ...children);
}

let lastId = 0;

/** A name for an element that a label or a description refers to. */
export function freshId() {
  return `e${++lastId}`;
}

/**
 * A labelled slider: {root, set(value), input}. `format` writes the value beside it; `values`, if given, are the steps
 * that it goes through, for scales that are not even.
 */
export function slider({ label, min = 0, max, step = 1, value, values = null, format = String, onInput }) {
  const id = freshId();
  const shown = el("output", { for: id, class: "value" });
  const toNumber = (place) => (values ? values[Number(place)] : Number(place));
  const toPlace = (number) => (values ? nearest(values, number) : number);
  const input = el("input", {
    id,
    type: "range",
    min: values ? 0 : min,
    max: values ? values.length - 1 : max,
    step: values ? 1 : step,
    oninput: () => {
      show(toNumber(input.value));
      onInput(toNumber(input.value));
    },
  });
  const show = (number) => {
    shown.textContent = format(number);
    input.setAttribute("aria-valuetext", format(number));
  };
  const set = (number) => {
    input.value = toPlace(number);
    show(number);
  };
  set(value);
  const root = el("div", { class: "slider" }, el("label", { for: id }, label), shown, input);
  return { root, set, input };
}

function nearest(values, number) {
  let best = 0;
  values.forEach((value, place) => {
    if (Math.abs(value - number) < Math.abs(values[best] - number)) best = place;
  });
  return best;
}

/** A labelled group of radio buttons: {root, set(value)}; `options` is {value: text}. */
export function choice({ label, options, value, onChange }) {
  const name = freshId();
  const inputs = Object.entries(options).map(([key, text]) => {
    const input = el("input", { type: "radio", name, value: key, onchange: () => onChange(key) });
    return { key, input, root: el("label", {}, input, el("span", {}, text)) };
  });
  const set = (wanted) =>
    inputs.forEach(({ key, input }) => {
      input.checked = key === wanted;
    });
  set(value);
  return {
    root: el(
      "fieldset",
      { class: "choice" },
      el("legend", {}, label),
      inputs.map((one) => one.root),
    ),
    set,
  };
}

/** A labelled drop-down list: {root, set(value), fill(options)}; `options` is {value: text}. */
export function dropdown({ label, options, value, onChange }) {
  const id = freshId();
  const select = el("select", { id, onchange: () => onChange(select.value) });
  const fill = (all) =>
    select.replaceChildren(...Object.entries(all).map(([key, text]) => el("option", { value: key }, text)));
  fill(options);
  select.value = value;
  return {
    root: el("div", { class: "dropdown" }, el("label", { for: id }, label), select),
    set: (wanted) => {
      select.value = wanted;
    },
    fill,
  };
}

/** Numbers as people read them: four digits, no noise, a true minus. */
export function number(value, digits = 4) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text =
    size >= 1e5 || size < 1e-3
      ? value.toExponential(Math.max(0, digits - 2))
      : Number(value.toPrecision(digits)).toString();
  return text.replace("-", "−").replace("e+", "e");
}

export function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}
