// EM routing of one position in 32 bits, the precision in which networks are trained. routing.js has 64 bits, where the 1e-9 of
// equation (3) keeps the variance of a parent with one child at about 1e-18; in 32 bits 1 + 1e-9 is 1, and the variance is 0.
// Every number is rounded by being stored in a Float32Array. Numbers in brackets are the equations of docs/definition.md.

import { lambdaAt, logistic, meanData } from "./routing.js";

const LAB_EPSILON = 1e-9;

/** What `route` gives for a layer of one position, whose children all vote for the same parents. Costs are scaled by the mean data. */
export function labRouteInSingle(layer, votes, activation, betaU, betaA, { iterations, finalLambda, varianceFloor }) {
  const rounded = Float32Array.from(votes);
  let assignment = new Float32Array(layer.edges).fill(1 / layer.parentTypes); // (1)
  const steps = [];
  for (let t = 0; t < iterations; t++) {
    const step = labMaximise(
      layer,
      rounded,
      activation,
      assignment,
      betaU,
      betaA,
      lambdaAt(t, finalLambda),
      varianceFloor,
    );
    steps.push(step);
    if (t + 1 < iterations) {
      step.logJoint = labLogJoints(layer, rounded, step);
      assignment = labDivide(step.logJoint, layer.parentTypes);
    }
  }
  return steps;
}

function labMaximise(layer, votes, activation, assignment, betaU, betaA, lambda, floor) {
  const { edges, parentTypes } = layer;
  const data = new Float32Array(parentTypes),
    costs = new Float32Array(parentTypes);
  const mean = new Float32Array(parentTypes * 16),
    variance = new Float32Array(parentTypes * 16);
  const share = assignment.map((part, edge) => part * activation[Math.floor(edge / parentTypes)]); // (2)
  for (let edge = 0; edge < edges; edge++) {
    const parent = edge % parentTypes;
    data[parent] += share[edge];
    for (let h = 0; h < 16; h++) mean[parent * 16 + h] += share[edge] * votes[edge * 16 + h];
  }
  const weight = data.map((sum) => sum + LAB_EPSILON);
  mean.forEach((sum, at) => {
    mean[at] = sum / weight[at >> 4];
  }); // (3)
  for (let edge = 0; edge < edges; edge++) {
    for (let at = (edge % parentTypes) * 16, from = edge * 16; from < edge * 16 + 16; at++, from++) {
      variance[at] += share[edge] * Math.fround(votes[from] - mean[at]) ** 2;
    }
  }
  variance.forEach((sum, at) => {
    variance[at] = sum / weight[at >> 4] + floor;
  }); // (4)
  variance.forEach((value, at) => {
    costs[at >> 4] += betaU[at >> 4] + 0.5 * Math.log(value);
  });
  const cost = costs.map((sum, parent) => (sum * data[parent]) / meanData(layer)); // (5)
  const logit = cost.map((value, parent) => lambda * (betaA[parent] - value)); // (6)
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

function labLogJoints({ edges, parentTypes }, votes, { mean, variance, logit }) {
  const precision = variance.map((value) => 1 / value);
  const logJoint = new Float32Array(edges);
  for (let edge = 0; edge < edges; edge++) {
    const parent = edge % parentTypes;
    let sum = Math.min(0, logit[parent]) - Math.log1p(Math.exp(-Math.abs(logit[parent]))); // the logarithm of the activation
    for (let at = parent * 16, from = edge * 16; from < edge * 16 + 16; at++, from++) {
      sum -= 0.5 * (Math.log(2 * Math.PI * variance[at]) + Math.fround(votes[from] - mean[at]) ** 2 * precision[at]);
    }
    logJoint[edge] = sum;
  }
  return logJoint;
}

function labDivide(logJoint, parentTypes) {
  const assignment = new Float32Array(logJoint.length);
  for (let start = 0; start < logJoint.length; start += parentTypes) {
    const own = logJoint.subarray(start, start + parentTypes);
    const largest = Math.max(...own);
    const parts = own.map((value) => Math.exp(value - largest));
    const total = parts.reduce((sum, part) => sum + part, 0);
    assignment.set(
      parts.map((part) => part / total),
      start,
    ); // (7)
  }
  return assignment;
}
