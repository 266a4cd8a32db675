// Runs the page's own modules on cases that a test gives as JSON on standard input; prints JSON.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [page] = process.argv.slice(2);
const from = (name) => import(pathToFileURL(`${page}/${name}`));
const { classLayer, convLayer, effectiveChildren, route, votesOf } = await from("routing.js");
const { dataFlow, networkFrom, runNetwork } = await from("network.js");
const { readWeights } = await from("weights.js");

const plain = (steps) =>
  steps.map((step) =>
    Object.fromEntries(
      ["assignment", "mean", "variance", "cost", "activation"].map((key) => [key, Array.from(step[key])]),
    ),
  );

const jobs = {
  route({ shape, pose, activation, weight, betaU, betaA, settings }) {
    const layer = shape.kernel ? convLayer(shape) : classLayer(shape);
    const steps = route(layer, votesOf(layer, pose, weight), activation, betaU, betaA, settings);
    return { steps: plain(steps), effective: Array.from(effectiveChildren(layer, steps[steps.length - 1])) };
  },
  network({ weights, image, settings }) {
    const network = networkFrom(readWeights(bytes(weights)));
    const { crop, results } = runNetwork(network, image, { ...network.settings, ...settings });
    const again = () => runNetwork(network, image, { ...network.settings, ...settings });
    for (let warm = 0; warm < 2; warm++) again();
    const started = process.cpuUsage();
    again();
    const { user, system } = process.cpuUsage(started);
    return {
      names: network.names,
      parameters: network.parameters,
      crop: Array.from(crop),
      milliseconds: (user + system) / 1000,
      primary: { pose: Array.from(results[0].pose), activation: Array.from(results[0].activation) },
      flow: Array.from(dataFlow({ results }, 1, 0)),
      layers: results.slice(1).map(({ name, steps }) => ({ name, steps: plain(steps) })),
    };
  },
  refuse({ weights }) {
    try {
      networkFrom(readWeights(bytes(weights)));
    } catch (error) {
      return { message: error.message };
    }
    return { message: null };
  },
};

function bytes(base64) {
  const buffer = Buffer.from(base64, "base64");
  return buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength);
}

const { job, ...given } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(jobs[job](given)));
