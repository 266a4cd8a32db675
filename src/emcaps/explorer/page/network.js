// The whole network on one image: convolution, primary capsules, routed layers. The twin of nn/network.py.

import { EPSILON, classLayer, convLayer, logistic, route, votesOf } from "./routing.js";

const IMAGE_KERNEL = 5,
  IMAGE_STRIDE = 2,
  IMAGE_PADDING = 2;
const GREY_LEVELS = 40; // that count as 1 when grey is measured from the background

/**
 * A network from a weights file (weights.js): its layers for square crops, its settings and the names of its classes.
 * An Error says why a file is not one that this page can show.
 */
export function networkFrom({ tensors, config, names }) {
  const { network, data } = config;
  checkSettings(network, data, names);
  const side = data.size || 48,
    crop = data.crop,
    channels = tensors["network.relu_conv1.0.weight"]?.shape[1] ?? 0;
  const tensor = (name, count) => {
    const found = tensors[`network.${name}`];
    if (!found) throw new Error(`These weights lack ${name}: they are not a whole capsule network of emcaps.`);
    if (found.values.length !== count) {
      throw new Error(`${name} of these weights has ${found.values.length} numbers where the settings need ${count}.`);
    }
    return Float64Array.from(found.values);
  };
  const primarySide = Math.floor((crop + 2 * IMAGE_PADDING - IMAGE_KERNEL) / IMAGE_STRIDE) + 1;
  const layers = layersOf(network, [primarySide, primarySide]);
  for (const layer of layers) {
    const matrices = layer.kind === "class" ? layer.childTypes : layer.reads;
    layer.matrices = tensor(`${layer.name}.weight`, matrices * layer.parentTypes * 16);
    layer.betaU = tensor(`${layer.name}.beta_u`, layer.parentTypes);
    layer.betaA = tensor(`${layer.name}.beta_a`, layer.parentTypes);
  }
  const { conv_channels: features, primary_types: types } = network;
  return {
    layers,
    names,
    side,
    crop,
    channels,
    standardise: data.standardise || "image",
    standardisesItself: network.input === "standardised",
    fit: data.fit || "crop",
    conv: {
      weight: tensor("relu_conv1.0.weight", features * channels * IMAGE_KERNEL ** 2),
      bias: tensor("relu_conv1.0.bias", features),
      channels: features,
    },
    primary: {
      grid: [primarySide, primarySide],
      types,
      pose: {
        weight: tensor("primary_caps.pose.weight", 16 * types * features),
        bias: tensor("primary_caps.pose.bias", 16 * types),
      },
      activation: {
        weight: tensor("primary_caps.activation.weight", types * features),
        bias: tensor("primary_caps.activation.bias", types),
      },
    },
    poseGain: network.pose_scale ? tensor("pose_gain", layers.length) : null,
    settings: {
      iterations: network.iterations,
      finalLambda: network.final_lambda,
      varianceFloor: network.variance_floor,
      dataScaling: network.data_scaling,
      competition: network.competition,
    },
    // without a decoder, which no answer needs
    parameters: Object.entries(tensors)
      .filter(([name]) => !name.startsWith("network.decoder."))
      .reduce((sum, [, { values }]) => sum + values.length, 0),
  };
}

/** Throw an Error with a sentence unless the page can show a network of these settings, which may be a stranger's. */
function checkSettings(network, data, names) {
  if (network.kind !== "capsules") {
    throw new Error(
      `These weights are of a ${network.kind} network, which has no routing to show. Use those of a capsule network.`,
    );
  }
  if (network.pose === "vector") {
    throw new Error(
      "These weights have poses that are vectors, which this page does not show. Use a network with matrices.",
    );
  }
  const check = (name, value, least, most) => {
    if (!Number.isInteger(value) || value < least || value > most) {
      throw new Error(`The settings of these weights say ${name} ${value}, where this page needs ${least} to ${most}.`);
    }
  };
  check("conv_channels", network.conv_channels, 1, 4096);
  check("primary_types", network.primary_types, 1, 1024);
  check("classes", network.classes, 2, 1000);
  check("iterations", network.iterations, 1, 20);
  check("size", data.size || 48, 8, 512);
  check("crop", data.crop, 8, data.size || 48);
  check("number of names", names.length, network.classes, network.classes);
  for (const layer of describedLayers(network)) {
    check("types", layer?.types, 1, 1024);
    check("kernel", layer.kernel, 1, 64);
    check("stride", layer.stride, 1, 64);
    if (layer.padding) {
      throw new Error(
        "These weights have a layer with padding, which this page does not show. Use a network without padding.",
      );
    }
  }
  if (![network.final_lambda, network.variance_floor, network.coordinate_scale ?? 1].every(Number.isFinite)) {
    throw new Error("The settings of these weights have a λ, a variance floor or a scale that is no number.");
  }
}

/** The routed layers for a grid of primary capsules. */
function layersOf(network, primaryGrid) {
  const layers = [];
  let grid = primaryGrid,
    childTypes = network.primary_types;
  for (const { types, kernel, stride } of describedLayers(network)) {
    const layer = convLayer({
      grid,
      childTypes,
      parentTypes: types,
      kernel: [kernel, kernel],
      stride: [stride, stride],
    });
    layers.push({ ...layer, name: `conv_caps${layers.length + 1}` });
    [grid, childTypes] = [layer.parentGrid, types];
  }
  const coordinateScale = network.coordinate_scale ?? 1;
  layers.push({
    ...classLayer({ grid, childTypes, parentTypes: network.classes, coordinateScale }),
    name: "class_caps",
  });
  return layers;
}

function describedLayers(network) {
  if (network.layers) return network.layers;
  return [
    { types: network.conv1_types, kernel: 3, stride: 2 },
    { types: network.conv2_types, kernel: 3, stride: 1 },
  ];
}

/** What the network reads of an image (channels x side x side grey levels): its centre, prepared as in training. */
export function prepared(network, image) {
  const { side, crop, channels, standardise } = network;
  let pixels = Float64Array.from(image);
  if (pixels.length !== channels * side * side) {
    throw new RangeError(`an image must have ${channels} x ${side} x ${side} pixels, not ${pixels.length} in all`);
  }
  if (standardise === "image") pixels = standardised(pixels);
  if (standardise === "background") pixels = aboveBackground(pixels, channels, side);
  const first = Math.floor((side - crop) / 2);
  let cut = new Float64Array(channels * crop * crop);
  for (let c = 0, at = 0; c < channels; c++) {
    for (let y = 0; y < crop; y++) {
      for (let x = 0; x < crop; x++) cut[at++] = pixels[(c * side + first + y) * side + first + x];
    }
  }
  if (standardise === "crop") cut = standardised(cut);
  return cut;
}

/** Mean 0 and standard deviation 1; the deviation counts as at least `least`, so that a blank image becomes zeros. */
function standardised(pixels, least = 1 / Math.sqrt(pixels.length)) {
  const mean = pixels.reduce((sum, value) => sum + value, 0) / pixels.length;
  const centred = pixels.map((value) => value - mean);
  const deviation = Math.sqrt(centred.reduce((sum, value) => sum + value * value, 0) / pixels.length);
  return centred.map((value) => value / Math.max(deviation, least));
}

function aboveBackground(pixels, channels, side) {
  const above = new Float64Array(pixels.length);
  for (let c = 0; c < channels; c++) {
    const at = (y, x) => (c * side + y) * side + x;
    let edge = 0;
    for (let k = 0; k < side; k++) edge += pixels[at(0, k)] + pixels[at(side - 1, k)];
    for (let k = 1; k < side - 1; k++) edge += pixels[at(k, 0)] + pixels[at(k, side - 1)];
    edge /= 4 * side - 4;
    for (let k = at(0, 0); k < at(0, 0) + side * side; k++) above[k] = (pixels[k] - edge) / GREY_LEVELS;
  }
  return above;
}

/** Primary capsules of what `prepared` gives: pose (children x 16) and activation (children). */
export function primaryCapsules(network, crop) {
  const features = rectifiedConvolution(
    network,
    network.standardisesItself ? standardised(crop, Number.MIN_VALUE) : crop,
  );
  const { types, pose, activation } = network.primary;
  const cells = features.length / network.conv.channels;
  return {
    pose: perCell(features, cells, network.conv.channels, pose, types * 16),
    activation: perCell(features, cells, network.conv.channels, activation, types).map(logistic),
  };
}

/** (cells x channels): the first convolution, followed by max(0, .). */
function rectifiedConvolution(network, crop) {
  const { conv, channels, crop: side } = network;
  const [rows, columns] = network.primary.grid;
  const features = new Float64Array(rows * columns * conv.channels);
  for (let v = 0; v < rows; v++) {
    for (let u = 0; u < columns; u++) {
      for (let a = 0; a < conv.channels; a++) {
        let sum = conv.bias[a];
        for (let c = 0; c < channels; c++) {
          for (let y = 0; y < IMAGE_KERNEL; y++) {
            const row = v * IMAGE_STRIDE - IMAGE_PADDING + y;
            if (row < 0 || row >= side) continue;
            for (let x = 0; x < IMAGE_KERNEL; x++) {
              const column = u * IMAGE_STRIDE - IMAGE_PADDING + x;
              if (column < 0 || column >= side) continue;
              sum +=
                crop[(c * side + row) * side + column] *
                conv.weight[((a * channels + c) * IMAGE_KERNEL + y) * IMAGE_KERNEL + x];
            }
          }
        }
        features[(v * columns + u) * conv.channels + a] = Math.max(0, sum);
      }
    }
  }
  return features;
}

/** A linear map of the channels of each cell: (cells x outputs). */
function perCell(features, cells, channels, { weight, bias }, outputs) {
  const result = new Float64Array(cells * outputs);
  for (let cell = 0; cell < cells; cell++) {
    for (let out = 0; out < outputs; out++) {
      let sum = bias[out];
      for (let a = 0; a < channels; a++) sum += features[cell * channels + a] * weight[out * channels + a];
      result[cell * outputs + out] = sum;
    }
  }
  return result;
}

/**
 * Run the network on an image: [primary, routed...]. Every routed layer has the children that it read (pose,
 * activation), its votes and its steps; `pose` and `activation` of each are what the next layer reads.
 *
 * `settings` are those of `route`, with betaU and betaA: numbers that are added to the learned betas of every layer.
 */
export function runNetwork(network, image, settings) {
  const crop = prepared(network, image);
  const primary = { name: "primary_caps", ...primaryCapsules(network, crop) };
  const results = [primary];
  for (const [number, layer] of network.layers.entries()) {
    const before = results[number];
    const childPose = scaled(network, before.pose, number);
    const votes = votesOf(layer, childPose, layer.matrices);
    const betaU = layer.betaU.map((beta) => beta + (settings.betaU || 0));
    const betaA = layer.betaA.map((beta) => beta + (settings.betaA || 0));
    const steps = route(layer, votes, before.activation, betaU, betaA, settings);
    const last = steps[steps.length - 1];
    results.push({
      name: layer.name,
      layer,
      votes,
      steps,
      betaU,
      betaA,
      childPose,
      childActivation: before.activation,
      pose: last.mean,
      activation: last.activation,
    });
  }
  return { crop, results };
}

/** Poses as the layer reads them: divided by their root mean square and times a learned gain, if the network does so. */
function scaled(network, pose, number) {
  if (!network.poseGain) return pose;
  const size = Math.sqrt(pose.reduce((sum, value) => sum + value * value, 0) / pose.length + 1e-6);
  return pose.map((value) => (value * network.poseGain[number]) / size);
}

/** Where on the primary grid the data of a class came from (cells, summing to 1), by one iteration's assignments. */
export function dataFlow({ results }, classNumber, iteration) {
  const last = results[results.length - 1];
  let shares = new Float64Array(last.layer.parentTypes);
  shares[classNumber] = 1;
  for (const { layer, steps } of results.slice(1).reverse()) shares = sharesOfChildren(layer, steps[iteration], shares);
  const types = results[1].layer.childTypes;
  const cells = new Float64Array(shares.length / types);
  shares.forEach((share, child) => {
    cells[Math.floor(child / types)] += share;
  });
  return cells;
}

/** Every parent passes its share on to its children, in proportion to the data that each gave it. */
function sharesOfChildren(layer, step, parentShares) {
  const { positions, reads, parentTypes, childOf } = layer;
  const shares = new Float64Array(layer.children);
  for (let p = 0, edge = 0; p < positions; p++) {
    for (let n = 0; n < reads; n++) {
      const child = childOf[p * reads + n];
      for (let parent = p * parentTypes; parent < (p + 1) * parentTypes; parent++, edge++) {
        shares[child] += (parentShares[parent] * step.share[edge]) / Math.max(step.data[parent], EPSILON);
      }
    }
  }
  return shares;
}
