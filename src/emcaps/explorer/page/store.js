// The state of the page, and what follows from it: changing a picture or a setting runs the network again.

import { runNetwork } from "./network.js";

/**
 * A store with `state`, `set(changes)` and `subscribe(listener)`. The state has: network, image (pixels), settings, run
 * (what runNetwork gives), milliseconds (how long that took), iteration, view, capsulesAs ("activations" or "poses"), and what is picked: layer (its number),
 * position and type of a parent, and read, the number of one of the children that it reads.
 */
export function createStore(initial) {
  const store = { state: { ...initial }, listeners: [] };
  store.subscribe = (listener) => {
    store.listeners.push(listener);
    listener(store.state);
  };
  store.set = (changes) => {
    const state = { ...store.state, ...changes };
    if (["network", "image", "settings"].some((name) => name in changes)) computeRun(state);
    clampChoices(state);
    store.state = state;
    for (const listener of store.listeners) listener(state);
  };
  computeRun(store.state);
  clampChoices(store.state);
  return store;
}

function computeRun(state) {
  const started = performance.now();
  state.run = runNetwork(state.network, state.image, state.settings);
  state.milliseconds = performance.now() - started;
}

/** What is picked must exist, also after another network or fewer iterations. */
function clampChoices(state) {
  const clamp = (value, count) => Math.max(0, Math.min(value, count - 1));
  state.iteration = clamp(state.iteration, state.settings.iterations);
  state.layer = clamp(state.layer, state.network.layers.length);
  const layer = state.network.layers[state.layer];
  state.position = clamp(state.position, layer.positions);
  state.type = clamp(state.type, layer.parentTypes);
  state.read = clamp(state.read, layer.reads);
}

/** The routed layer that is picked: its graph, what it computed and the step of the iteration that is shown. */
export function picked(state) {
  const result = state.run.results[state.layer + 1];
  const { layer } = result;
  const parent = state.position * layer.parentTypes + state.type;
  const edge = (state.position * layer.reads + state.read) * layer.parentTypes + state.type;
  const child = layer.childOf[state.position * layer.reads + state.read];
  return { result, layer, step: result.steps[state.iteration], parent, edge, child };
}

/** The number of the most active capsule; the first one if activations are NaN. */
export function mostActive(activation) {
  return Math.max(0, activation.indexOf(Math.max(...activation)));
}

/** The root mean square of a parent's standard deviations: how far the votes for it spread. */
export function spreadOf({ variance }, parent) {
  return Math.sqrt(variance.subarray(parent * 16, parent * 16 + 16).reduce((sum, value) => sum + value, 0) / 16);
}

/** Where a child is read: numbers p * reads + n of every position p that reads it as its n-th child. */
export function readersOf(layer, child) {
  return Array.from(layer.childOf.keys()).filter((place) => layer.childOf[place] === child);
}

/** Class numbers, the most active one first. */
export function ranking(state) {
  const { activation } = state.run.results[state.run.results.length - 1].steps[state.iteration];
  return Array.from(activation, (_, number) => number).sort((a, b) => activation[b] - activation[a]);
}

/** The n-th child that a parent reads, by row and column of its grid and type. */
export function placeOfChild(layer, child) {
  const cell = Math.floor(child / layer.childTypes);
  return { row: Math.floor(cell / layer.grid[1]), column: cell % layer.grid[1], type: child % layer.childTypes };
}

/** Names of layers as people say them. */
export const LAYER_NAMES = { primary_caps: "primary capsules", class_caps: "class capsules" };

export function layerName(name) {
  return LAYER_NAMES[name] || name.replace("conv_caps", "convolutional capsules ");
}
