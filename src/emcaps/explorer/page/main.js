// Puts the page together: unpacks what is inside it, makes the store and the views, and shows one view at a time.

import { iterationBar, pictureControls, routingControls, truthOf } from "./controls.js";
import { el } from "./dom.js";
import { mountLaboratory } from "./laboratory.js";
import { layerView } from "./layer_view.js";
import { networkFrom } from "./network.js";
import { networkView, strongestRead } from "./network_view.js";
import { bytesOf, givenImage, toyImage } from "./pictures.js";
import { createStore, ranking } from "./store.js";
import { tour } from "./tour.js";
import { turntableView } from "./turntable.js";
import { voteView } from "./vote_view.js";
import { readWeights } from "./weights.js";

const TITLES = { network: "Network", layer: "Layer", vote: "Vote", laboratory: "Laboratory" };

async function start() {
  const pictures = JSON.parse(document.getElementById("pictures").textContent);
  pictures.pixels = await bytesOf(pictures.pixels, true);
  const network = networkFrom(
    readWeights((await bytesOf(document.getElementById("weights").textContent.trim())).buffer),
  );
  const isToy = pictures.kind === "toys";
  const views = isToy ? { toy: 0, elevation: 0, azimuth: 0, lighting: 0 } : null;
  const store = createStore({
    network,
    image: isToy ? toyImage(pictures, 0, views) : givenImage(pictures, 0),
    imageName: pictures.names[0],
    views,
    truth: truthOf(network, pictures, 0),
    settings: { ...network.settings, betaU: 0, betaA: 0 },
    iteration: network.settings.iterations - 1,
    view: "network",
    capsulesAs: "activations",
    layer: network.layers.length - 1,
    position: 0,
    type: 0,
    read: 0,
  });
  const winner = ranking(store.state)[0];
  store.set({ type: winner, read: strongestRead(store.state, network.layers.length, 0, winner) });
  buildPage(store, pictures);
}

function buildPage(store, pictures) {
  const controls = pictureControls(store, pictures, say);
  const turntable = pictures.kind === "toys" ? turntableView(store, pictures, controls.setViews) : null;
  const laboratory = el("div");
  mountLaboratory(laboratory, store);
  const shown = {
    network: [networkView(store), turntable].filter(Boolean),
    layer: [layerView(store)],
    vote: [voteView(store)],
    laboratory: [{ root: laboratory, update: () => {} }],
  };
  const panels = Object.fromEntries(
    Object.entries(shown).map(([name, parts]) => [
      name,
      el(
        "div",
        { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, tabindex: -1 },
        parts.map((part) => part.root),
      ),
    ]),
  );
  const settings = el("div", { class: "settings" }, routingControls(store));
  const main = document.getElementById("main");
  main.replaceChildren(
    el(
      "div",
      { class: "layout" },
      el("div", { class: "side" }, controls.root),
      el("div", { class: "content" }, tabs(store), Object.values(panels)),
      settings,
    ),
    iterationBar(store),
  );
  store.subscribe((state) => {
    const wasHidden = panels[state.view].hidden;
    for (const [name, panel] of Object.entries(panels)) panel.hidden = name !== state.view;
    settings.hidden = state.view === "laboratory"; // which has sliders of its own
    // What was picked with the keyboard is in a view that is hidden now: the keyboard goes on in the new one.
    if (wasHidden && document.activeElement === document.body) panels[state.view].focus({ preventScroll: true });
    for (const part of shown[state.view]) part.update(state);
    document.getElementById("summary").textContent =
      `${state.networkName || document.title}: ${state.network.parameters.toLocaleString("en")} learned numbers. Everything is computed in this page.`;
  });
  globalThis.emcaps = { store }; // for the browser's console: emcaps.store.state.run holds every number
  const { button, card } = tour(store);
  document.getElementById("top-buttons").replaceChildren(button, themeButton());
  main.append(card);
}

function tabs(store) {
  const buttons = Object.entries(TITLES).map(([name, title]) =>
    el(
      "button",
      { role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, onclick: () => store.set({ view: name }) },
      title,
    ),
  );
  const list = el(
    "div",
    {
      role: "tablist",
      "aria-label": "How close to look",
      class: "tabs",
      onkeydown: (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
        next.focus();
        next.click();
      },
    },
    buttons,
  );
  store.subscribe(({ view }) =>
    buttons.forEach((button) => {
      const selected = button.id === `tab-${view}`;
      button.setAttribute("aria-selected", String(selected));
      button.tabIndex = selected ? 0 : -1;
    }),
  );
  return list;
}

function themeButton() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const button = el("button", { onclick: () => show(root.dataset.theme !== "dark") });
  const show = (isDark) => {
    root.dataset.theme = isDark ? "dark" : "light";
    button.textContent = isDark ? "☀ Light" : "☾ Dark";
  };
  dark.addEventListener("change", () => show(dark.matches));
  show(dark.matches);
  return button;
}

/** A sentence at the top of the page, for mistakes and for news; an empty one takes it away. */
function say(text, isError) {
  const message = document.getElementById("message");
  message.textContent = text;
  message.hidden = !text;
  message.classList.toggle("warning", isError);
}

start().catch((error) => {
  document.getElementById("loading")?.remove();
  say(`This page cannot start: ${error.message}`, true);
});
