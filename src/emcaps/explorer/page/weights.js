// Weights files of emcaps: safetensors with the run's config in the header. The reader trusts nothing in them.

const LARGEST_HEADER = 1_000_000; // bytes

/** {tensors: {name: {shape, values}}, config, names} of a file's bytes; an Error says in a sentence what is wrong. */
export function readWeights(buffer) {
  const { header, start } = headerOf(buffer);
  const config = configOf(header);
  const tensors = {};
  for (const [name, entry] of Object.entries(header)) {
    if (name.startsWith("network.")) tensors[name] = tensorOf(buffer, start, name, entry);
  }
  for (const [name, entry] of Object.entries(header)) {
    // A checkpoint with a mean of the weights: what the run evaluates and will save.
    if (name.startsWith("average."))
      tensors[name.replace("average.", "network.")] = tensorOf(buffer, start, name, entry);
  }
  return { tensors, config, names: namesOf(config) };
}

function configOf(header) {
  let config = null;
  try {
    config = JSON.parse(header.__metadata__.config);
  } catch {
    // What follows says so.
  }
  if (typeof config?.network !== "object" || typeof config?.data !== "object" || !config.network || !config.data) {
    throw new Error(
      "This file holds no settings of a network, so emcaps did not write it. Take weights.safetensors of a run.",
    );
  }
  return config;
}

function tensorOf(buffer, start, name, entry) {
  const { dtype, shape, data_offsets: offsets } = entry ?? {};
  const isWhole = (value) => Number.isSafeInteger(value) && value >= 0;
  const isSound =
    dtype === "F32" &&
    Array.isArray(shape) &&
    shape.every(isWhole) &&
    Array.isArray(offsets) &&
    offsets.every(isWhole) &&
    offsets[1] - offsets[0] === 4 * shape.reduce((product, side) => product * side, 1) &&
    start + offsets[1] <= buffer.byteLength;
  if (!isSound) throw new Error(`The tensor ${name} in this file is damaged, or is not float32.`);
  const values = new Float32Array(buffer.slice(start + offsets[0], start + offsets[1]));
  if (!values.every(Number.isFinite))
    throw new Error(`The tensor ${name} in this file has numbers that are not finite.`);
  return { shape, values };
}

function headerOf(buffer) {
  const wrong = new Error("This is no safetensors file: its header cannot be read.");
  if (buffer.byteLength < 8) throw wrong;
  const size = Number(new DataView(buffer).getBigUint64(0, true));
  if (size > LARGEST_HEADER || 8 + size > buffer.byteLength) throw wrong;
  try {
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
    if (typeof header !== "object" || header === null) throw wrong;
    return { header, start: 8 + size };
  } catch {
    throw wrong;
  }
}

function namesOf({ network, data }) {
  if (Array.isArray(data.names) && data.names.length) return data.names.map(String);
  if (network.classes === 5 && !data.channels) return ["animal", "human", "airplane", "truck", "car"];
  return Array.from({ length: network.classes }, (_, number) => `class ${number}`);
}
