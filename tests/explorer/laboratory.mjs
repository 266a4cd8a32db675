// Runs what the laboratory's panels compute, on cases that a test gives as JSON on standard input; prints JSON.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [page] = process.argv.slice(2);
const from = (name) => import(pathToFileURL(`${page}/${name}`));
const oneChild = await from("lab_one_child.js");
const positions = await from("lab_positions.js");
const map = await from("lab_map.js");
const range = await from("lab_range.js");
const { classLayer, convLayer, meanData, votesOf } = await from("routing.js");
const { networkFrom } = await from("network.js");
const { readWeights } = await from("weights.js");

const jobs = {
  oneChild({ seed, children, floor, bits }) {
    const { layer, pose, matrices, votes } = oneChild.labChildrenLayer(oneChild.labChildren(seed, children));
    const steps = oneChild.labChildrenSteps({ layer, votes }, floor, bits);
    const facts = steps.map((step) => oneChild.labParentFacts(layer, step));
    const sentences = facts.map((parents, t) => oneChild.labIterationSentence(parents, t + 1));
    return { pose, matrices, facts, sentences, assignment: steps.map((step) => Array.from(step.assignment)) };
  },
  positions({ seed, children, kernel, stride }) {
    const row = positions.labRow(seed, children, kernel, stride);
    const found = positions.labCompetition(row);
    const sums = { all: positions.labColumnSums(found.all), types: positions.labColumnSums(found.types) };
    const sentences = found.map[0].map((_, child) => positions.labCompetitionSentence(found, child));
    return { pose: row.pose, matrices: row.matrices, ...found, sums, sentences };
  },
  map({ grid, kernel, stride }) {
    const windows = map.labWindows(grid, kernel, stride);
    const sentence = `${map.labWindowSentence(windows, 0, 0)} ${map.labUnreadSentence(windows)}`;
    return { map: windows.map, readers: windows.readers, unread: windows.unread, sentence };
  },
  range({ shape, pose, activation, weight, betaU, betaA, settings }) {
    const layer = shape.kernel ? convLayer(shape) : classLayer(shape);
    const votes = votesOf(layer, pose, weight);
    const result = {
      name: "layer",
      layer,
      steps: [],
      votes,
      activation: [],
      childActivation: activation,
      betaU,
      betaA,
    };
    const inputs = (dataScaling) => Array.from(range.labInputs(result, { ...settings, dataScaling }));
    return {
      mean: inputs("mean"),
      none: inputs("none"),
      ranges: range.labRanges([{ name: "primary_caps" }, result], settings),
    };
  },
  histogram({ inputs }) {
    return range.labHistogram(inputs);
  },
  meanData({ weights }) {
    const buffer = Buffer.from(weights, "base64");
    const network = networkFrom(
      readWeights(buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength)),
    );
    return network.layers.map(meanData);
  },
};

// JSON has no NaN and no infinity: they travel as their names.
const named = (_, value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value);
const { job, ...given } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(jobs[job](given), named));
