// The left column: which picture the network sees, and how it routes.

import { choice, el, slider } from "./dom.js";
import { drawPicture } from "./draw.js";
import { givenImage, readPicture, toyImage } from "./pictures.js";
import { networkFrom } from "./network.js";
import { mostActive } from "./store.js";
import { readWeights } from "./weights.js";

const FLOORS = [0, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1];
const MOST_WEIGHTS = 20_000_000; // bytes
const OTHER_IMAGES = "This network reads other images than those in this page. Drop a picture of your own.";
const LAMBDAS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.5, 1, 2, 5, 10];

/** Pictures to choose from, sliders that turn a toy, and a place to drop a file of one's own. */
export function pictureControls(store, pictures, say) {
  const views = { toy: 0, elevation: 0, azimuth: 0, lighting: 0 };
  const buttons = pictures.names.map((name, number) => {
    const canvas = el("canvas", { class: "thumbnail", "aria-hidden": "true" });
    const image = pictures.kind === "toys" ? toyImage(pictures, number, views) : givenImage(pictures, number);
    drawPicture(canvas, image, pictures.side, pictures.side);
    return el(
      "button",
      { class: "picture", "aria-pressed": "false", onclick: () => choose(number) },
      canvas,
      el("span", {}, name),
    );
  });
  const show = () => {
    if (!reads(store.state.network, pictures)) {
      say(OTHER_IMAGES, true);
      return;
    }
    const image = pictures.kind === "toys" ? toyImage(pictures, views.toy, views) : givenImage(pictures, views.toy);
    store.set({
      image,
      truth: truthOf(store.state.network, pictures, views.toy),
      imageName: pictures.names[views.toy],
      views: pictures.kind === "toys" ? { ...views } : null,
    });
  };
  const choose = (number) => {
    views.toy = number;
    press(number);
    turning.hidden = pictures.kind !== "toys";
    show();
  };
  const press = (number) =>
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(place === number)));
  const sliders = pictures.kind === "toys" ? turningSliders(pictures, views, show) : {};
  const turning = el(
    "div",
    { class: "turning", hidden: pictures.kind !== "toys" },
    Object.values(sliders).map((one) => one.root),
  );
  press(0);
  const useFile = async (file) => {
    try {
      if (file.name.endsWith(".safetensors")) {
        if (file.size > MOST_WEIGHTS) throw new Error(`${file.name} is too large: this page takes 20 MB of weights.`);
        useWeights(store, await file.arrayBuffer(), file.name, pictures);
        say(`The page now runs ${file.name}.`, false);
        return;
      }
      const image = await readPicture(file, store.state.network);
      press(-1);
      turning.hidden = true;
      store.set({ image, truth: null, imageName: file.name, views: null });
      say("", false);
    } catch (error) {
      say(error.message, true);
    }
  };
  const fileInput = el("input", {
    type: "file",
    accept: "image/*,.safetensors",
    class: "hidden-text",
    id: "own-file",
    onchange: () => {
      if (fileInput.files[0]) useFile(fileInput.files[0]);
      fileInput.value = "";
    },
  });
  const drop = el(
    "label",
    { for: "own-file", class: "drop" },
    "Drop a picture of your own anywhere on this page, or choose one here.",
  );
  acceptDrops(useFile);
  const root = el(
    "section",
    { class: "card", "aria-label": "Picture" },
    el("h2", {}, "Picture"),
    el("div", { class: "pictures" }, buttons),
    turning,
    fileInput,
    drop,
  );
  const setViews = (changes) => {
    Object.assign(views, changes);
    for (const [name, one] of Object.entries(sliders)) one.set(views[name]);
    press(views.toy);
    turning.hidden = pictures.kind !== "toys";
    show();
  };
  return { root, setViews };
}

function turningSliders(pictures, views, show) {
  const turn = (name, values, label, unit) =>
    slider({
      label,
      max: values.length - 1,
      value: views[name],
      format: (place) => `${values[place]}${unit}`,
      onInput: (place) => {
        views[name] = place;
        show();
      },
    });
  const sliders = {
    azimuth: turn("azimuth", pictures.azimuths, "Turn (azimuth)", "°"),
    elevation: turn("elevation", pictures.elevations, "Look from above (elevation)", "°"),
  };
  if (pictures.lightings.length > 1) sliders.lighting = turn("lighting", pictures.lightings, "Light", "");
  return sliders;
}

/** The class of a picture in the page, if it is known and the network has a class of that name. */
export function truthOf(network, { truths }, picture) {
  return truths && network.names.includes(truths[picture]) ? truths[picture] : null;
}

/** Whether the pictures in the page have the size and the channels that the network reads. */
function reads(network, { channels, side }) {
  return network.channels === channels && network.side === side;
}

function useWeights(store, buffer, name, pictures) {
  const network = networkFrom(readWeights(buffer));
  const fits = reads(network, pictures);
  const image = fits ? store.state.image : new Uint8Array(network.channels * network.side ** 2).fill(128);
  store.set({
    network,
    settings: { ...network.settings, betaU: 0, betaA: 0 },
    image,
    imageName: fits ? store.state.imageName : "a grey image",
    networkName: name,
    truth: fits && network.names.includes(store.state.truth) ? store.state.truth : null,
    views: fits ? store.state.views : null,
    iteration: network.settings.iterations - 1,
  });
  if (!fits) throw new Error(OTHER_IMAGES);
}

function acceptDrops(useFile) {
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dragging");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    if (event.dataTransfer.files[0]) useFile(event.dataTransfer.files[0]);
  });
}

/** Sliders and switches for the routing of all layers. */
export function routingControls(store) {
  const change = (changes) => store.set({ settings: { ...store.state.settings, ...changes } });
  const { settings } = store.state;
  const parts = {
    iterations: slider({
      label: "Iterations",
      min: 1,
      max: 5,
      value: settings.iterations,
      onInput: (iterations) => {
        store.set({ settings: { ...store.state.settings, iterations }, iteration: iterations - 1 });
      },
    }),
    finalLambda: slider({
      label: "λ, inverse temperature",
      values: LAMBDAS,
      value: settings.finalLambda,
      onInput: (finalLambda) => change({ finalLambda }),
    }),
    varianceFloor: slider({
      label: "Variance floor",
      values: FLOORS,
      value: settings.varianceFloor,
      format: (floor) => (floor ? floor.toExponential(0).replace("-", "−").replace("e+0", "") : "0"),
      onInput: (varianceFloor) => change({ varianceFloor }),
    }),
    betaA: slider({
      label: "Added to β_a (raises activations)",
      min: -10,
      max: 10,
      step: 0.5,
      value: 0,
      onInput: (betaA) => change({ betaA }),
    }),
    betaU: slider({
      label: "Added to β_u (lowers activations)",
      min: -2,
      max: 2,
      step: 0.1,
      value: 0,
      onInput: (betaU) => change({ betaU }),
    }),
    competition: choice({
      label: "Who competes for a child",
      options: { all: "types and positions", types: "types alone (pitfall 3)" },
      value: settings.competition,
      onChange: (competition) => change({ competition }),
    }),
    dataScaling: choice({
      label: "Data of a parent",
      options: { mean: "relative to the layer’s mean", none: "as it is (pitfall 2)" },
      value: settings.dataScaling,
      onChange: (dataScaling) => change({ dataScaling }),
    }),
  };
  const reset = el(
    "button",
    {
      onclick: () => {
        const { network } = store.state;
        store.set({
          settings: { ...network.settings, betaU: 0, betaA: 0 },
          iteration: network.settings.iterations - 1,
        });
      },
    },
    "As trained",
  );
  const time = el("p", { class: "quiet" });
  store.subscribe(({ network, settings: now, milliseconds }) => {
    parts.iterations.input.max = Math.max(5, network.settings.iterations);
    for (const [name, part] of Object.entries(parts)) part.set(now[name]);
    time.textContent = `The whole network took ${milliseconds.toFixed(0)} ms.`;
  });
  return el(
    "section",
    { class: "card", "aria-label": "Routing" },
    el("div", { class: "row spread" }, el("h2", {}, "Routing"), reset),
    Object.values(parts).map((part) => part.root),
    time,
  );
}

/** The bar at the bottom: one iteration after the other. */
export function iterationBar(store) {
  let timer = null;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "▶ Play";
  };
  const advance = () => {
    const { iteration, settings } = store.state;
    if (iteration + 1 >= settings.iterations) stop();
    else store.set({ iteration: iteration + 1 });
  };
  const button = el(
    "button",
    {
      class: "strong",
      onclick: () => {
        if (timer) {
          stop();
          return;
        }
        if (store.state.iteration + 1 >= store.state.settings.iterations) store.set({ iteration: 0 });
        timer = setInterval(advance, still ? 2000 : 1100);
        button.textContent = "❚❚ Pause";
      },
    },
    "▶ Play",
  );
  const place = slider({
    label: "Iteration shown",
    min: 1,
    max: 2,
    value: 1,
    onInput: (value) => store.set({ iteration: value - 1 }),
  });
  const answer = el("p", { class: "answer", "aria-live": "polite" });
  const root = el(
    "section",
    { class: "iteration-bar", "aria-label": "Step through the iterations" },
    button,
    place.root,
    answer,
  );
  store.subscribe((state) => {
    root.hidden = state.view === "laboratory"; // which has sliders of its own
    place.input.max = state.settings.iterations;
    place.set(state.iteration + 1);
    answer.replaceChildren(...answerText(state));
  });
  return root;
}

function answerText(state) {
  const { activation } = state.run.results[state.run.results.length - 1].steps[state.iteration];
  if (!activation.every(Number.isFinite)) return [el("strong", { class: "warning" }, "NaN: routing broke down")];
  const best = mostActive(activation);
  const isLast = state.iteration + 1 === state.settings.iterations;
  const judgement = state.truth === state.network.names[best] ? "good" : "warning";
  return [
    isLast ? "answer: " : `after iteration ${state.iteration + 1}: `,
    el("strong", { class: isLast && state.truth ? judgement : null }, state.network.names[best]),
    ` ${activation[best].toFixed(3)}`,
    state.truth ? ` (it is: ${state.truth})` : "",
  ];
}
