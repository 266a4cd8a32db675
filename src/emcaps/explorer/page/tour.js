// The guided tour: short stops, each of which brings the page into the state that it talks about.

import { el } from "./dom.js";
import { strongestRead } from "./network_view.js";
import { effectiveChildren } from "./routing.js";
import { mostActive } from "./store.js";

const NARROW = matchMedia("(max-width: 60rem)"); // as in style.css

const STOPS = [
  {
    title: "What the network sees",
    look: ".stages > li:first-child",
    text: "A small picture. The network has to say which of the classes it shows, from whatever side.",
    go: (store) => asTrained(store, { view: "network" }),
  },
  {
    title: "Parts, and how they lie",
    look: ".stages > li:nth-child(2)",
    text: "The first capsules look at small patches. Each one says how surely its part is there (bright) and, in 16 numbers that you do not see here, how the part lies: its pose.",
    go: (store) => asTrained(store, { view: "network" }),
  },
  {
    title: "Every part votes",
    look: ".vote-view .equation",
    text: "A part that lies like this suggests a whole that lies like that. So each capsule multiplies its pose by a learned matrix: the product is its vote for the pose of one capsule above it.",
    go: (store) => onMostActive(store, 0, { view: "vote", iteration: 0 }),
  },
  {
    title: "At first nobody knows",
    look: ".layer-view .plot",
    text: "These are all the votes for the class that will win. In the first iteration each child is shared out evenly over its parents, so all votes count by their activation alone, and the cloud is wide.",
    go: (store) => onMostActive(store, store.state.network.layers.length - 1, { view: "layer", iteration: 0 }),
  },
  {
    title: "Votes that agree win",
    look: ".layer-view .plot",
    text: "This is the last iteration. Each child has given more of itself to the parents whose Gaussian explains its vote best. What agrees gets more weight, and the cloud tightens. That is routing.",
    go: (store) => onMostActive(store, store.state.network.layers.length - 1, { view: "layer" }),
  },
  {
    title: "Tight clouds become active",
    look: ".stages > li:last-child",
    text: "A parent whose votes agree is cheap to describe, so it becomes active. Move the slider at the bottom between iterations and watch the classes part.",
    go: (store) => asTrained(store, { view: "network" }),
  },
  {
    title: "Pitfall 1: parents with one child",
    look: ".facts",
    text: "A single vote agrees with itself perfectly. Here the variance floor is 0, and there are five iterations: this parent lives on hardly more than one child, its variance is next to nothing, and its cost falls without limit. In 32 bits this ends in NaN, as the laboratory shows.",
    go: (store) => lonelyParent(store),
  },
  {
    title: "Pitfall 2: how much data",
    look: ".stages > li:last-child",
    text: "A class reads far more children than other parents do. Here data is not measured relative to the layer’s mean, so the costs of the classes are far from 0, and the logistic function is stuck at one end, where nothing can be learned.",
    go: (store) => asTrained(store, { view: "network" }, { dataScaling: "none" }),
  },
  {
    title: "Pitfall 3: positions must compete",
    look: "[aria-label='Parents of this child']",
    text: "A child may be read from several positions. Here only the types at one position compete, so every position gets all of the child, and it is counted once for each. Its shares should sum to 1 over all its parents.",
    go: (store) => overlappingChild(store),
  },
  {
    title: "Your turn",
    look: ".side",
    text: "Turn the toy, drop in a picture of your own, or go to the laboratory, where the three pitfalls can be taken apart.",
    go: (store) => asTrained(store, { view: "network" }),
  },
];

function asTrained(store, changes, settings = {}) {
  const trained = store.state.network.settings;
  const now = { ...trained, betaU: 0, betaA: 0, ...settings };
  store.set({ settings: now, iteration: now.iterations - 1, ...changes });
}

/** Pick the most active parent of a layer and the child that gives it the most. */
function onMostActive(store, layer, changes) {
  asTrained(store, {});
  const result = store.state.run.results[layer + 1];
  const parent = mostActive(result.activation);
  const position = Math.floor(parent / result.layer.parentTypes),
    type = parent % result.layer.parentTypes;
  store.set({ layer, position, type, read: strongestRead(store.state, layer + 1, position, type), ...changes });
}

/** The parent of the first routed layer that lives on the fewest children, without a floor. */
function lonelyParent(store) {
  asTrained(store, {}, { varianceFloor: 0, iterations: 5 });
  const { layer, steps } = store.state.run.results[1];
  const last = steps[steps.length - 1];
  const effective = effectiveChildren(layer, last);
  let best = 0;
  for (let parent = 0; parent < effective.length; parent++) {
    const lonelier = last.data[parent] > 0.3 && effective[parent] < effective[best];
    if (last.data[best] <= 0.3 || lonelier) best = parent;
  }
  const position = Math.floor(best / layer.parentTypes),
    type = best % layer.parentTypes;
  store.set({ layer: 0, position, type, read: strongestRead(store.state, 1, position, type), view: "layer" });
}

/** A child of the first routed layer that most positions read, with competition of types alone. */
function overlappingChild(store) {
  asTrained(store, {}, { competition: "types" });
  const { layer } = store.state.run.results[1];
  const most = layer.readers.indexOf(Math.max(...layer.readers));
  const place = layer.childOf.indexOf(most);
  store.set({ layer: 0, position: Math.floor(place / layer.reads), read: place % layer.reads, type: 0, view: "layer" });
}

/** The button that starts the tour, and the card that leads through it. */
export function tour(store) {
  let stop = 0;
  const title = el("h2", { id: "tour-title", tabindex: -1 }),
    text = el("p"),
    count = el("span", { class: "quiet" });
  const back = el("button", { onclick: () => go(stop - 1) }, "Back"),
    next = el("button", { class: "strong", onclick: () => (stop + 1 < STOPS.length ? go(stop + 1) : end()) }, "Next");
  const card = el(
    "section",
    {
      class: "tour card",
      "aria-labelledby": "tour-title",
      hidden: true,
      onkeydown: (event) => {
        if (event.key === "Escape") end();
      },
    },
    title,
    text,
    el(
      "div",
      { class: "row spread" },
      count,
      el("div", { class: "row" }, el("button", { onclick: () => end() }, "End the tour"), back, next),
    ),
  );
  const button = el("button", { class: "strong", onclick: () => go(0) }, "Take the tour (3 minutes)");
  const unmark = () => document.querySelectorAll(".toured").forEach((element) => element.classList.remove("toured"));
  const go = (number) => {
    stop = number;
    const { title: heading, text: words, look, go: prepare } = STOPS[stop];
    prepare(store);
    title.textContent = heading;
    text.textContent = words;
    count.textContent = `${stop + 1} of ${STOPS.length}`;
    back.disabled = stop === 0;
    next.textContent = stop + 1 < STOPS.length ? "Next" : "Done";
    card.hidden = false;
    unmark();
    const target = document.querySelector(look);
    target?.classList.add("toured");
    target?.scrollIntoView({ block: NARROW.matches ? "start" : "center" });
    title.focus({ preventScroll: true });
  };
  const end = () => {
    card.hidden = true;
    asTrained(store, {});
    unmark();
    button.focus();
  };
  return { button, card };
}
