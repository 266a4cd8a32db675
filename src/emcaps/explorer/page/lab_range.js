// Pitfall 2: the inputs of the logistic function, layer by layer, with costs relative to the layer's mean data and without.

import { el, number, percent, slider, svg } from "./dom.js";
import { labColumns, labFigure, labPanel, labTable, labTableCell, labTableRow } from "./lab_parts.js";
import { logistic, meanData, route } from "./routing.js";

const LAB_USEFUL = 5; // inputs beyond it are saturated: the logistic function is within 0.7 % of 0 or 1
const LAB_REACH = 12; // the pictures' range; what lies beyond is counted at its ends
const LAB_BINS = 24;
const LAB_LAMBDAS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10];

/** The inputs of the logistic function at an iteration: one for each parent of a layer that runNetwork routed. */
export function labInputs({ layer, votes, childActivation, betaU, betaA }, settings) {
  return route(layer, votes, childActivation, betaU, betaA, settings)[settings.iterations - 1].logit;
}

/** How many inputs fall into each bin from -12 to 12 (the ends take what is beyond), and what share is saturated. */
export function labHistogram(inputs) {
  const counts = new Array(LAB_BINS).fill(0);
  const finite = Array.from(inputs).filter((input) => !Number.isNaN(input));
  for (const input of finite)
    counts[Math.min(LAB_BINS - 1, Math.max(0, Math.floor(((input + LAB_REACH) / (2 * LAB_REACH)) * LAB_BINS)))]++;
  const saturated = finite.filter((input) => Math.abs(input) > LAB_USEFUL).length;
  return { counts, saturated: saturated / finite.length, low: Math.min(...finite), high: Math.max(...finite) };
}

/** Both histograms of every routed layer of a run. */
export function labRanges(results, settings) {
  return results
    .filter((result) => result.steps)
    .map((result) => ({
      name: result.name,
      data: meanData(result.layer),
      parents: result.activation.length,
      mean: labHistogram(labInputs(result, { ...settings, dataScaling: "mean" })),
      none: labHistogram(labInputs(result, { ...settings, dataScaling: "none" })),
    }));
}

/** Why the last layer is the one that leaves the range. */
export function labRangeSentence(ranges) {
  const last = ranges[ranges.length - 1],
    others = ranges.slice(0, -1).map(({ data }) => data);
  const [scaled, bare] = [last.mean, last.none].map(({ saturated }) => percent(saturated));
  const key = `Saturated inputs of ${last.name}: ${scaled} with scaling, ${bare} without.`;
  if (!others.length) return key;
  const times = [last.data / Math.max(...others), last.data / Math.min(...others)].map((ratio) => ratio.toFixed(0));
  const much = times[0] === times[1] ? times[0] : `${times[0]} to ${times[1]}`;
  return (
    `${key} A cost is a sum over a parent's data. Each parent of ${last.name} reads every child and gets ${number(last.data, 3)} ` +
    `of them on average if all are active, ${much} times as much as the parents of other layers. So no λ suits them all.`
  );
}

export function labRangePanel(store) {
  const state = { iteration: null, lambda: null };
  const iteration = slider({
    label: "Iteration",
    min: 1,
    max: 5,
    value: 1,
    onInput: (value) => {
      state.iteration = value;
      update();
    },
  });
  const lambda = slider({
    label: "Final λ",
    values: LAB_LAMBDAS,
    value: 1,
    format: (value) => number(value, 2),
    onInput: (value) => {
      state.lambda = value;
      update();
    },
  });
  const pictures = el("div"),
    table = el("div");
  const panel = labPanel({
    title: "The logistic's operating range",
    sentences: [
      "A parent's activation is the logistic function of λ (β_a − cost). It is useful between −5 and 5. Beyond that it says 0 or 1 " +
        "whatever the votes are, and hardly any gradient comes back. The cost grows with the data that a parent gets, which differs " +
        "between layers.",
      "Below, the layers of this page's network are routed twice on what they read: with each cost divided by the mean data of its layer, " +
        "and with the bare cost.",
    ],
    attempt:
      "leave λ at 1 and look at the last layer without scaling. Then look for a λ that keeps every layer with a bare cost within " +
      "the range, and none of them huddled at 0.",
    controls: [iteration.root, lambda.root],
    pictures: [pictures, table],
  });

  const update = () => {
    const { run, network } = store.state;
    if (!run || !network) return;
    state.iteration ??= network.settings.iterations;
    state.lambda ??= network.settings.finalLambda;
    iteration.set(state.iteration);
    lambda.set(state.lambda);
    const settings = {
      ...network.settings,
      ...store.state.settings,
      iterations: state.iteration,
      finalLambda: state.lambda,
    };
    const ranges = labRanges(run.results, settings);
    pictures.replaceChildren(...ranges.map(labRangePictures));
    table.replaceChildren(labRangeTable(ranges));
    panel.say(labRangeSentence(ranges));
  };
  labWhenSeen(panel.root, store, update);
  return panel.root;
}

/** Update after every new run of the network, but only while the panel is on the screen: routing each layer twice takes time. */
function labWhenSeen(root, store, update) {
  let seen = false,
    shown = null;
  const refresh = () => {
    if (!seen || store.state.run === shown) return;
    shown = store.state.run;
    update();
  };
  store.subscribe(refresh);
  new IntersectionObserver((entries) => {
    seen = entries[entries.length - 1].isIntersecting;
    refresh();
  }).observe(root);
}

function labRangePictures({ name, data, parents, mean, none }) {
  return labColumns(
    labFigure(`${name}, ${parents} parents: cost divided by ${number(data, 3)}`, labRangePicture(name, mean)),
    labFigure(`${name}, ${parents} parents: bare cost`, labRangePicture(name, none)),
  );
}

/** Bars of the inputs under the logistic curve; the useful range is shaded, saturated bars have another colour. */
function labRangePicture(name, { counts, saturated }) {
  const x = (input) => 150 + (input / LAB_REACH) * 145,
    y = (share) => 100 - 90 * share;
  const most = Math.max(1, ...counts),
    width = x((2 * LAB_REACH) / LAB_BINS) - x(0);
  const bars = counts.map((count, bin) => {
    const from = -LAB_REACH + (bin * 2 * LAB_REACH) / LAB_BINS,
      top = y(count / most);
    const name = from < -LAB_USEFUL || from >= LAB_USEFUL ? "lab-beyond" : "lab-within";
    return svg("rect", { x: x(from) + 0.5, y: top, width: width - 1, height: 100 - top, class: name });
  });
  const curve = Array.from({ length: 97 }, (_, at) => -LAB_REACH + at / 4)
    .map((input) => `${x(input)} ${y(logistic(input))}`)
    .join("L");
  const ticks = [-10, -5, 0, 5, 10].map((input) =>
    svg("text", { x: x(input), y: 115, class: "lab-middle lab-small" }, number(input)),
  );
  const label = `Inputs of the logistic function in ${name}: ${percent(saturated)} are beyond 5`;
  return svg(
    "svg",
    { viewBox: "0 0 300 120", class: "lab-picture", role: "img", "aria-label": label },
    svg("rect", { x: x(-LAB_USEFUL), y: 5, width: x(LAB_USEFUL) - x(-LAB_USEFUL), height: 95, class: "lab-useful" }),
    bars,
    svg("path", { d: `M${curve}`, class: "lab-curve" }),
    svg("path", { d: "M0 100H300", class: "lab-axes" }),
    ticks,
  );
}

function labRangeTable(ranges) {
  const names = ["layer", "mean data", "saturated, scaled", "inputs, scaled", "saturated, bare", "inputs, bare"];
  const cells = ({ saturated, low, high }) => [
    labTableCell(percent(saturated), saturated > 0.5 ? "warning" : null),
    labTableCell(`${number(low, 3)} to ${number(high, 3)}`),
  ];
  const rows = ranges.map(({ name, data, mean, none }) =>
    labTableRow(name, labTableCell(number(data, 3)), cells(mean), cells(none)),
  );
  return labTable(
    "Inputs beyond −5 and 5 are saturated; bars at the ends of a picture hold all inputs beyond 12",
    names,
    rows,
  );
}
