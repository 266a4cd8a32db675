// EM routing by its definition, one image at a time: the twin of routing/reference.py, which tests compare it with.
// Numbers in brackets are the equations of docs/definition.md.
//
// A layer is a graph: P parent positions, each of which reads N children and has O types of parent.
//   edge   (p * N + n) * O + o    parent type o at position p reads its n-th child
//   parent p * O + o
//   h      the 16 elements of a pose, row by row
// All numbers are doubles.

export const EPSILON = 1e-9; // gives a parent without data the pose 0, where 0 / 0 would be NaN
const MOST_EDGES = 4_000_000; // of a layer: nine times as many as the full network has
const LOG_TWO_PI = Math.log(2 * Math.PI);

/** A convolutional layer on a grid of children: a parent at (v, u) reads the window that begins at (v, u) * stride. */
export function convLayer({ grid, childTypes, parentTypes, kernel, stride }) {
  const rows = Math.floor((grid[0] - kernel[0]) / stride[0]) + 1;
  const columns = Math.floor((grid[1] - kernel[1]) / stride[1]) + 1;
  if (!(rows >= 1 && columns >= 1)) {
    throw new RangeError(`a kernel of ${kernel.join("x")} does not fit into a grid of ${grid.join("x")} children`);
  }
  const reads = kernel[0] * kernel[1] * childTypes;
  checkEdges(rows * columns * reads * parentTypes);
  const childOf = new Int32Array(rows * columns * reads);
  let next = 0;
  for (let v = 0; v < rows; v++) {
    for (let u = 0; u < columns; u++) {
      for (let y = 0; y < kernel[0]; y++) {
        for (let x = 0; x < kernel[1]; x++) {
          const cell = (v * stride[0] + y) * grid[1] + u * stride[1] + x;
          for (let type = 0; type < childTypes; type++) childOf[next++] = cell * childTypes + type;
        }
      }
    }
  }
  const matrixOf = Int32Array.from({ length: reads }, (_, n) => n);
  return layerOf({
    kind: "conv",
    grid,
    childTypes,
    parentGrid: [rows, columns],
    parentTypes,
    kernel,
    stride,
    childOf,
    matrixOf,
  });
}

function checkEdges(count) {
  if (count > MOST_EDGES) {
    throw new RangeError(
      `a layer with ${count} votes for an image is too large for this page, which takes ${MOST_EDGES}`,
    );
  }
}

/** A class layer: one position that reads all children, through matrices that all positions share. */
export function classLayer({ grid, childTypes, parentTypes, coordinateScale = 1 }) {
  const reads = grid[0] * grid[1] * childTypes;
  checkEdges(reads * parentTypes);
  const childOf = Int32Array.from({ length: reads }, (_, n) => n);
  const matrixOf = Int32Array.from({ length: reads }, (_, n) => n % childTypes);
  const layer = layerOf({
    kind: "class",
    grid,
    childTypes,
    parentGrid: [1, 1],
    parentTypes,
    kernel: grid,
    stride: [1, 1],
    childOf,
    matrixOf,
  });
  // A child's scaled position, times coordinateScale, is added to the right-hand column of its votes.
  layer.position = Array.from({ length: reads }, (_, n) => {
    const cell = Math.floor(n / childTypes);
    const place = [(Math.floor(cell / grid[1]) + 0.5) / grid[0], ((cell % grid[1]) + 0.5) / grid[1]];
    return place.map((share) => coordinateScale * share);
  });
  return layer;
}

function layerOf(layer) {
  const positions = layer.parentGrid[0] * layer.parentGrid[1];
  const children = layer.grid[0] * layer.grid[1] * layer.childTypes;
  const readers = new Int32Array(children); // how many positions read each child
  for (const child of layer.childOf) readers[child]++;
  const reads = layer.matrixOf.length;
  return {
    ...layer,
    positions,
    children,
    readers,
    reads,
    edges: positions * reads * layer.parentTypes,
    position: null,
  };
}

/** How many children a parent gets if all are active and divided evenly. */
export function meanData(layer) {
  return layer.children / (layer.positions * layer.parentTypes);
}

export function lambdaAt(iteration, finalLambda) {
  return finalLambda * (1 - 0.95 ** (iteration + 1));
}

/** V_ij = M_i W_ij for every edge: 16 numbers each. `matrices` holds 16 numbers for every (matrixOf[n], o). */
export function votesOf(layer, pose, matrices) {
  const { positions, reads, parentTypes, childOf, matrixOf } = layer;
  const votes = new Float64Array(layer.edges * 16);
  for (let p = 0, at = 0; p < positions; p++) {
    for (let n = 0; n < reads; n++) {
      const m = childOf[p * reads + n] * 16;
      for (let o = 0; o < parentTypes; o++, at += 16) {
        const w = (matrixOf[n] * parentTypes + o) * 16;
        for (let row = 0; row < 4; row++) {
          const a = pose[m + 4 * row],
            b = pose[m + 4 * row + 1],
            c = pose[m + 4 * row + 2],
            d = pose[m + 4 * row + 3];
          for (let column = 0; column < 4; column++) {
            votes[at + 4 * row + column] =
              a * matrices[w + column] +
              b * matrices[w + 4 + column] +
              c * matrices[w + 8 + column] +
              d * matrices[w + 12 + column];
          }
        }
        if (layer.position) {
          votes[at + 3] += layer.position[n][0];
          votes[at + 7] += layer.position[n][1];
        }
      }
    }
  }
  return votes;
}

/**
 * Route: one entry an iteration, with assignment and share = assignment times the child's activation (edges), data, cost, logit
 * and activation (parents), mean and variance (parents x 16), and the log joints that the E-step after it divides (edges; null after the last).
 *
 * settings: iterations, finalLambda, varianceFloor, dataScaling "mean" or "none", competition "all" or "types".
 */
export function route(layer, votes, activation, betaU, betaA, settings) {
  const { iterations, finalLambda, varianceFloor, dataScaling, competition } = settings;
  const dataUnit = dataScaling === "mean" ? meanData(layer) : 1;
  const steps = [];
  let assignment = evenly(layer);
  for (let t = 0; t < iterations; t++) {
    const step = maximise(
      layer,
      votes,
      activation,
      assignment,
      betaU,
      betaA,
      lambdaAt(t, finalLambda),
      varianceFloor,
      dataUnit,
    );
    steps.push(step);
    if (t + 1 < iterations) {
      step.logJoint = logJoints(layer, votes, step);
      assignment =
        competition === "all" ? divideOverParents(layer, step.logJoint) : divideOverTypes(layer, step.logJoint);
    }
  }
  return steps;
}

/** (1) Every child is divided evenly over all of its parents. */
function evenly(layer) {
  const { positions, reads, parentTypes, childOf, readers } = layer;
  const assignment = new Float64Array(layer.edges);
  for (let p = 0, edge = 0; p < positions; p++) {
    for (let n = 0; n < reads; n++) {
      const share = 1 / (readers[childOf[p * reads + n]] * parentTypes);
      for (let o = 0; o < parentTypes; o++) assignment[edge++] = share;
    }
  }
  return assignment;
}

/** The M-step. */
function maximise(layer, votes, activation, assignment, betaU, betaA, lambda, floor, dataUnit) {
  const { positions, reads, parentTypes, childOf } = layer;
  const parents = positions * parentTypes;
  const data = new Float64Array(parents),
    cost = new Float64Array(parents),
    logit = new Float64Array(parents);
  const mean = new Float64Array(parents * 16),
    variance = new Float64Array(parents * 16);
  const share = new Float64Array(layer.edges);
  for (let p = 0, edge = 0; p < positions; p++) {
    for (let n = 0; n < reads; n++) {
      const active = activation[childOf[p * reads + n]];
      for (let parent = p * parentTypes; parent < (p + 1) * parentTypes; parent++, edge++) {
        const part = (share[edge] = assignment[edge] * active); // (2)
        data[parent] += part;
        for (let to = parent * 16, from = edge * 16; to < parent * 16 + 16; to++, from++)
          mean[to] += part * votes[from];
      }
    }
  }
  for (let at = 0; at < mean.length; at++) mean[at] /= data[at >> 4] + EPSILON; // (3)
  for (let p = 0, edge = 0; p < positions; p++) {
    for (let n = 0; n < reads; n++) {
      for (let parent = p * parentTypes; parent < (p + 1) * parentTypes; parent++, edge++) {
        const part = share[edge];
        for (let to = parent * 16, from = edge * 16; to < parent * 16 + 16; to++, from++) {
          const off = votes[from] - mean[to];
          variance[to] += part * off * off;
        }
      }
    }
  }
  for (let parent = 0; parent < parents; parent++) {
    const type = parent % parentTypes;
    let costs = 0;
    for (let at = parent * 16; at < parent * 16 + 16; at++) {
      variance[at] = variance[at] / (data[parent] + EPSILON) + floor; // (4)
      costs += betaU[type] + 0.5 * Math.log(variance[at]);
    }
    cost[parent] = (costs * data[parent]) / dataUnit; // (5)
    logit[parent] = lambda * (betaA[type] - cost[parent]); // (6)
  }
  return {
    assignment,
    share,
    data,
    mean,
    variance,
    cost,
    logit,
    activation: logit.map(logistic),
    lambda,
    logJoint: null,
  };
}

export function logistic(x) {
  return 1 / (1 + Math.exp(-x));
}

function logLogistic(x) {
  return x < 0 ? x - Math.log1p(Math.exp(x)) : -Math.log1p(Math.exp(-x));
}

/** log of a_j N(V_ij; mu_j, s2_j) for every edge. The density is a product of 16 Gaussians. */
function logJoints(layer, votes, { mean, variance, logit }) {
  const { positions, reads, parentTypes } = layer;
  const constant = new Float64Array(positions * parentTypes);
  for (let parent = 0; parent < constant.length; parent++) {
    let logs = 16 * LOG_TWO_PI;
    for (let h = 0; h < 16; h++) logs += Math.log(variance[parent * 16 + h]);
    constant[parent] = logLogistic(logit[parent]) - 0.5 * logs;
  }
  const precision = variance.map((value) => 1 / value);
  const logJoint = new Float64Array(layer.edges);
  for (let p = 0, edge = 0; p < positions; p++) {
    for (let n = 0; n < reads; n++) {
      for (let parent = p * parentTypes; parent < (p + 1) * parentTypes; parent++, edge++) {
        let distance = 0;
        for (let to = parent * 16, from = edge * 16; to < parent * 16 + 16; to++, from++) {
          const off = votes[from] - mean[to];
          distance += off * off * precision[to];
        }
        logJoint[edge] = constant[parent] - 0.5 * distance;
      }
    }
  }
  return logJoint;
}

/** (7) Every child is divided over all of its parents, of every type at every position that reads it. */
function divideOverParents(layer, logJoint) {
  const { positions, reads, parentTypes, childOf, children } = layer;
  const largest = new Float64Array(children).fill(-Infinity),
    total = new Float64Array(children);
  const assignment = new Float64Array(layer.edges);
  const forEach = (act) => {
    for (let p = 0, edge = 0; p < positions; p++) {
      for (let n = 0; n < reads; n++) {
        const child = childOf[p * reads + n];
        for (let o = 0; o < parentTypes; o++, edge++) act(edge, child);
      }
    }
  };
  forEach((edge, child) => {
    if (logJoint[edge] > largest[child]) largest[child] = logJoint[edge];
  });
  forEach((edge, child) => {
    assignment[edge] = Math.exp(logJoint[edge] - largest[child]);
    total[child] += assignment[edge];
  });
  forEach((edge, child) => {
    assignment[edge] /= total[child];
  });
  return assignment;
}

/** Pitfall 3: only the types at one position compete, so a child is counted once for each position that reads it. */
function divideOverTypes(layer, logJoint) {
  const { parentTypes } = layer;
  const assignment = new Float64Array(layer.edges);
  for (let start = 0; start < assignment.length; start += parentTypes) {
    let largest = -Infinity,
      total = 0;
    for (let o = 0; o < parentTypes; o++) largest = Math.max(largest, logJoint[start + o]);
    for (let o = 0; o < parentTypes; o++) total += assignment[start + o] = Math.exp(logJoint[start + o] - largest);
    for (let o = 0; o < parentTypes; o++) assignment[start + o] /= total;
  }
  return assignment;
}

/** 1 if a parent lives on one child, N if N children give it equal shares: 1 / (sum of squared shares of its data). */
export function effectiveChildren(layer, step) {
  const { positions, reads, parentTypes } = layer;
  const squares = new Float64Array(positions * parentTypes);
  for (let p = 0, edge = 0; p < positions; p++) {
    for (let n = 0; n < reads; n++) {
      for (let parent = p * parentTypes; parent < (p + 1) * parentTypes; parent++, edge++)
        squares[parent] += step.share[edge] ** 2;
    }
  }
  return squares.map((square, parent) => (square > 0 ? step.data[parent] ** 2 / square : 0));
}
