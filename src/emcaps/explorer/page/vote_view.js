// One vote in numbers: the child's pose, the matrix, the vote, its distance from the parent's mean, and its share.

import { el, number } from "./dom.js";
import { matrixTable } from "./draw.js";
import { childName, parentName } from "./layer_view.js";
import { layerName, picked } from "./store.js";

export function voteView(store) {
  const root = el("div", { class: "vote-view" });
  const update = (state) => root.replaceChildren(...voteParts(store, state));
  return { root, update };
}

function voteParts(store, state) {
  const { result, layer, step, parent, edge, child } = picked(state);
  const matrix = layer.matrixOf[state.read] * layer.parentTypes + state.type;
  const pose = result.childPose.subarray(child * 16, child * 16 + 16);
  const weights = layer.matrices.subarray(matrix * 16, matrix * 16 + 16);
  const vote = result.votes.subarray(edge * 16, edge * 16 + 16);
  const mean = step.mean.subarray(parent * 16, parent * 16 + 16),
    variance = step.variance.subarray(parent * 16, parent * 16 + 16);
  const top = Math.max(
    1e-9,
    ...Array.from(pose, Math.abs),
    ...Array.from(vote, Math.abs),
    ...Array.from(mean, Math.abs),
  );
  const active = result.childActivation[child];
  const plus = layer.position
    ? el(
        "p",
        { class: "quiet" },
        `A class layer adds the child's place in the image, ${number(layer.position[state.read][0], 3)} down and ${number(layer.position[state.read][1], 3)} across, to column 4 of rows 1 and 2.`,
      )
    : null;
  return [
    el(
      "p",
      {},
      el("strong", {}, layerName(layer.name)),
      `, iteration ${state.iteration + 1}: the `,
      el("strong", {}, childName(layer, child)),
      " votes for the ",
      el("strong", {}, parentName(state)),
      ". ",
      el("button", { onclick: () => store.set({ view: "layer" }) }, "Choose another"),
    ),
    el(
      "section",
      { class: "card scroll", tabindex: 0, "aria-label": "The vote" },
      el("h2", {}, "The vote"),
      el(
        "p",
        {},
        "The child knows its own pose M. The network has learned a matrix W that says how the whole lies if the part lies like this. Their product is the child's vote V for the pose of the parent.",
      ),
      el(
        "div",
        { class: "equation" },
        matrixTable(pose, { caption: "M, the child's pose", top }),
        el("span", { "aria-hidden": "true" }, "×"),
        matrixTable(weights, { caption: "W, learned" }),
        el("span", { "aria-hidden": "true" }, "="),
        matrixTable(vote, { caption: "V, the vote", top }),
      ),
      plus,
    ),
    el(
      "section",
      { class: "card scroll", tabindex: 0, "aria-label": "Agreement" },
      el("h2", {}, "Does it agree?"),
      el(
        "p",
        {},
        "The parent is a Gaussian: a mean μ and a variance σ² for each of the 16 elements, from all votes by their weights. A vote near the mean, in units of the spread, is likely.",
      ),
      el(
        "div",
        { class: "equation" },
        matrixTable(vote, { caption: "V", top }),
        matrixTable(mean, { caption: "μ, the parent's pose", top }),
        matrixTable(variance, { caption: "σ²" }),
        matrixTable(
          vote.map((value, h) => (value - mean[h]) ** 2 / variance[h]),
          { caption: "(V − μ)² / σ²" },
        ),
      ),
    ),
    el(
      "section",
      { class: "card scroll", tabindex: 0, "aria-label": "Share" },
      el("h2", {}, "Its share"),
      shareTable(state, { layer, step, parent, edge, child, active, vote, mean, variance }, result),
    ),
  ];
}

/** From the distance to the child's new share, a line for each number. */
function shareTable(state, { layer, step, parent, edge, child, active, vote, mean, variance }, result) {
  const distance = vote.reduce((sum, value, h) => sum + (value - mean[h]) ** 2 / variance[h], 0);
  const logs = variance.reduce((sum, value) => sum + Math.log(2 * Math.PI * value), 0);
  const density = -0.5 * distance - 0.5 * logs;
  const rows = [
    ["a, the child's activation", active],
    ["R, its share for this parent in this iteration", step.assignment[edge]],
    ["r = R a, the weight of the vote", step.share[edge]],
    ["data of the parent, the sum of r over its children", step.data[parent]],
    ["cost of the parent", step.cost[parent]],
    ["λ in this iteration", step.lambda],
    ["the parent's activation, logistic(λ (β_a − cost))", step.activation[parent]],
    ["squared distance, the sum of (V − μ)² / σ²", distance],
    ["log density of the vote", density],
  ];
  const next = result.steps[state.iteration + 1];
  if (next) {
    const positions = state.settings.competition === "all" ? layer.readers[child] : 1;
    const rivals = positions * layer.parentTypes;
    rows.push(
      ["log joint: log a_j + log density", step.logJoint[edge]],
      [
        `R in iteration ${state.iteration + 2}: this parent's part of the sum over ${rivals} parents`,
        next.assignment[edge],
      ],
    );
  }
  const note = next
    ? null
    : el(
        "p",
        { class: "quiet" },
        "This is the last iteration: the parent's pose and activation are now final, and no new shares are computed.",
      );
  return el(
    "div",
    {},
    el(
      "table",
      { class: "plain" },
      el("caption", { class: "hidden-text" }, "From the vote to its share"),
      el(
        "tbody",
        {},
        rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, number(value, 5)))),
      ),
    ),
    note,
  );
}
