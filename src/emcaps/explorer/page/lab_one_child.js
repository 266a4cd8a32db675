// Pitfall 1, the paper's Fig. 1: over the iterations a parent may be left with one child, and then it has no variance.
//
// Every child has a point (x, y), and its pose holds this point eight times, row by row: (x, y, x, y) in each of the 4 rows. The
// matrices turn and stretch points, and so every vote is one point eight times, too. It can be drawn without leaving anything out.

import { choice, el, number, slider, svg } from "./dom.js";
import {
  LAB_MOVES,
  labColumns,
  labFigure,
  labPanel,
  labPlay,
  labRandom,
  labTable,
  labTableCell,
  labTableRow,
} from "./lab_parts.js";
import { labRouteInSingle } from "./lab_single.js";
import { convLayer, effectiveChildren, route, votesOf } from "./routing.js";

const LAB_PARENTS = 3;
const LAB_ITERATIONS = 5;
const LAB_FLOORS = [1, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-6, 1e-9, 0];
const LAB_NEARLY_ONE = 1.05; // effective children of a parent that is said to have one child
const LAB_NEXT_TO_NOTHING = 0.01; // data of a parent that is said to have no child

/** Points of the children and, for each child and parent, how its matrix turns and stretches a point. */
export function labChildren(seed, children) {
  const random = labRandom(seed);
  return Array.from({ length: children }, () => ({
    point: [2 * random() - 1, 2 * random() - 1],
    matrices: Array.from({ length: LAB_PARENTS }, () => ({ angle: 2 * Math.PI * random(), stretch: 0.5 + random() })),
  }));
}

/** The layer, poses, matrices and votes of children, as routing.js takes them. */
export function labChildrenLayer(drawn) {
  const one = [1, 1];
  const layer = convLayer({ grid: one, childTypes: drawn.length, parentTypes: LAB_PARENTS, kernel: one, stride: one });
  const pose = drawn.flatMap(({ point: [x, y] }) => [x, y, x, y, x, y, x, y, x, y, x, y, x, y, x, y]);
  const matrices = drawn.flatMap((child) =>
    child.matrices.flatMap(({ angle, stretch }) => {
      const c = stretch * Math.cos(angle),
        s = stretch * Math.sin(angle);
      return [c, s, 0, 0, -s, c, 0, 0, 0, 0, c, s, 0, 0, -s, c];
    }),
  );
  return { layer, pose, matrices, votes: votesOf(layer, pose, matrices) };
}

/** All iterations of children that are all active, with betas of 0 and a lambda of 1. */
export function labChildrenSteps({ layer, votes }, varianceFloor, bits) {
  const settings = {
    iterations: LAB_ITERATIONS,
    finalLambda: 1,
    varianceFloor,
    dataScaling: "mean",
    competition: "all",
  };
  const active = new Float64Array(layer.children).fill(1),
    beta = new Float64Array(LAB_PARENTS);
  return (bits === "32" ? labRouteInSingle : route)(layer, votes, active, beta, beta, settings);
}

/** What the page tells of each parent after an M-step: `problem` says in words why a number is not finite, `alone` means one child. */
export function labParentFacts(layer, step) {
  const effective = effectiveChildren(layer, step);
  return Array.from(step.data, (data, parent) => {
    const variance = Array.from(step.variance.subarray(parent * 16, parent * 16 + 16));
    const logDensity = variance.reduce((sum, value) => sum - 0.5 * Math.log(2 * Math.PI * value), 0);
    return {
      data,
      variance,
      logDensity,
      effective: Number.isNaN(data) ? NaN : effective[parent],
      mean: Array.from(step.mean.subarray(parent * 16, parent * 16 + 2)),
      activation: step.activation[parent],
      problem: labProblem(data, variance, logDensity),
      alone: data >= LAB_NEXT_TO_NOTHING && effective[parent] < LAB_NEARLY_ONE,
      starved: data < LAB_NEXT_TO_NOTHING,
    };
  });
}

function labProblem(data, variance, logDensity) {
  if (Number.isNaN(logDensity)) return "NaN: the E-step before had to compute ∞ − ∞";
  if (logDensity < Infinity) return null;
  if (data === 0) return "no child: log 0 = −∞, and 0 · (−∞) = NaN in the cost";
  return variance.some((value) => value > 0)
    ? "a variance is 0: log 0 = −∞, density ∞"
    : "one child, variance 0: log 0 = −∞, density ∞";
}

/** The key fact of an iteration in a sentence. */
export function labIterationSentence(parents, iteration) {
  const broken = parents.flatMap(({ problem }, parent) => (problem ? [`P${parent + 1}: ${problem}`] : []));
  if (broken.length === parents.length && parents.every(({ data }) => Number.isNaN(data))) {
    return `Iteration ${iteration}: every number is NaN. One parent without variance has spoilt all parents.`;
  }
  if (broken.length) return `Iteration ${iteration}: not finite. ${broken.join(". ")}.`;
  const named = (chosen) => parents.flatMap((parent, place) => (chosen(parent) ? [`P${place + 1}`] : []));
  const alone = named((parent) => parent.alone),
    starved = named((parent) => parent.starved);
  const all = parents
    .map(({ effective, starved: none }, place) => `P${place + 1} ${none ? "0" : effective.toFixed(1)}`)
    .join(", ");
  const lonely = `${alone.join(" and ") || "No parent"} ${alone.length > 1 ? "live" : "lives"} on one child.`;
  const warning =
    lonely +
    (starved.length ? ` ${starved.join(" and ")} ${starved.length > 1 ? "get" : "gets"} next to nothing.` : "");
  const rescued = parents.some((parent) => parent.alone && Math.max(...parent.variance) < 1e-12);
  const luck = rescued ? " Its variance is not 0 only because 64 bits keep the 1e-9 that guards another division." : "";
  return `Iteration ${iteration}: effective children ${all}. ${warning}${luck}`;
}

export function labOneChildPanel() {
  const state = { seed: 7, children: 5, iteration: 1, floor: 1e-4, bits: "32", drawn: labChildren(7, 5) };
  const seedText = el("output", { class: "quiet" });
  const network = svg("svg", { viewBox: "0 0 300 250", class: "lab-picture", role: "img" });
  const planes = Array.from({ length: LAB_PARENTS }, (_, parent) => labPlane(`Votes for P${parent + 1}`, 2.2));
  const poses = labPlane("Children (drag)", 1.2);
  const table = el("div");

  const iteration = slider({
    label: "Iteration",
    min: 1,
    max: LAB_ITERATIONS,
    value: 1,
    onInput: (value) => {
      play.stop();
      show(value);
    },
  });
  const show = (value) => {
    state.iteration = value;
    iteration.set(value);
    update();
  };
  const play = labPlay({ last: LAB_ITERATIONS, get: () => state.iteration, set: show });
  const draw = () => {
    state.drawn = labChildren(state.seed, state.children);
    seedText.textContent = `seed ${state.seed}`;
    placeChildren();
    update();
  };
  const floor = slider({
    label: "Variance floor",
    values: LAB_FLOORS,
    value: state.floor,
    format: (value) => number(value, 2),
    onInput: (value) => {
      state.floor = value;
      update();
    },
  });
  const children = slider({
    label: "Children",
    min: 2,
    max: 8,
    value: 5,
    onInput: (value) => {
      state.children = value;
      draw();
    },
  });
  const bits = choice({
    label: "Arithmetic",
    options: { 32: "32 bits, as in training", 64: "64 bits" },
    value: state.bits,
    onChange: (value) => {
      state.bits = value;
      update();
    },
  });
  const another = el(
    "button",
    {
      type: "button",
      onclick: () => {
        state.seed += 1;
        draw();
      },
    },
    "Another draw",
  );

  const panel = labPanel({
    title: "Parents with one child",
    sentences: [
      "At first every child is divided evenly over the parents. Each iteration makes the choice sharper, until a parent may be left with " +
        "one child. Its votes then have no spread: the variance is 0, and the cost needs the logarithm of 0. A small floor under the " +
        "variance prevents it.",
      "A pose has 16 numbers. Here they are one point eight times, so each point below shows a vote in full, and its density is the " +
        "eighth power of the density in the plane. All children are active, β is 0 and λ is 1.",
    ],
    attempt:
      "set the floor to 0 and step to iterations 3 and 4. Then take 8 children: with more children for each parent it happens later " +
      "or not at all.",
    controls: [
      iteration.root,
      floor.root,
      children.root,
      bits.root,
      el("div", { class: "row" }, play.root, another, seedText),
    ],
    pictures: [
      labColumns(
        labFigure("Who gets which child: the wider a line, the larger R_ij", network),
        el(
          "div",
          { class: "lab-planes" },
          poses.root,
          planes.map((plane) => plane.root),
        ),
      ),
      table,
    ],
  });

  let handles = [];
  const move = (child, x, y) => {
    const inside = (value) => Math.min(1, Math.max(-1, value));
    state.drawn[child].point = [inside(x), inside(y)];
    seedText.textContent = `seed ${state.seed}, moved`;
    update();
  };
  const placeChildren = () => {
    handles = state.drawn.map((_, child) =>
      labHandle(
        poses,
        child,
        (x, y) => move(child, x, y),
        () => state.drawn[child].point,
      ),
    );
    poses.draw(handles.map((handle) => handle.root));
  };
  const update = () => {
    const routed = labChildrenLayer(state.drawn);
    const steps = labChildrenSteps(routed, state.floor, state.bits);
    const step = steps[state.iteration - 1];
    const parents = labParentFacts(routed.layer, step);
    handles.forEach((handle) => handle.place());
    network.setAttribute(
      "aria-label",
      `Assignments of ${state.children} children to ${LAB_PARENTS} parents, iteration ${state.iteration}`,
    );
    network.replaceChildren(...labLines(step, parents, state.children));
    planes.forEach((plane, parent) => plane.draw(labVotes(plane, routed.votes, step, parents[parent], parent)));
    table.replaceChildren(labParentTable(parents, state.iteration));
    panel.say(labIterationSentence(parents, state.iteration));
  };
  draw();
  return panel.root;
}

const LAB_PLANE = 100; // half the side of a plane's picture

/** A square plane with its axes, from -reach to reach. {root, x(value), y(value), value(event), draw(parts)} */
function labPlane(title, reach) {
  const content = svg("g");
  const viewBox = [-LAB_PLANE, -LAB_PLANE, 2 * LAB_PLANE, 2 * LAB_PLANE].join(" ");
  const picture = svg(
    "svg",
    { viewBox, class: "lab-plane", role: "group", "aria-label": title },
    svg("path", { class: "lab-axes", d: `M${-LAB_PLANE} 0H${LAB_PLANE}M0 ${-LAB_PLANE}V${LAB_PLANE}` }),
    content,
  );
  const x = (value) => (value / reach) * LAB_PLANE,
    y = (value) => -(value / reach) * LAB_PLANE;
  const value = (event) => {
    const box = picture.getBoundingClientRect();
    return [
      (((event.clientX - box.left) / box.width) * 2 - 1) * reach,
      -(((event.clientY - box.top) / box.height) * 2 - 1) * reach,
    ];
  };
  return { root: labFigure(title, picture), x, y, value, reach, draw: (parts) => content.replaceChildren(...parts) };
}

/** A child that can be dragged, or moved with the arrow keys. */
function labHandle(plane, child, move, point) {
  const root = svg(
    "g",
    { class: "lab-handle", tabindex: 0, role: "button" },
    svg("circle", { r: 22, class: "lab-touch" }),
    svg("circle", { r: 14 }),
    svg("text", { class: "lab-node-text" }, `C${child + 1}`),
  );
  root.addEventListener("pointerdown", (event) => {
    root.setPointerCapture(event.pointerId);
    event.preventDefault();
    root.focus();
  });
  root.addEventListener("pointermove", (event) => {
    if (root.hasPointerCapture(event.pointerId)) move(...plane.value(event));
  });
  root.addEventListener("keydown", (event) => {
    const [right, down] = LAB_MOVES[event.key] || [0, 0];
    if (!right && !down) return;
    event.preventDefault();
    const [x, y] = point();
    move(x + right * 0.05, y - down * 0.05);
  });
  const place = () => {
    const [x, y] = point();
    root.setAttribute("transform", `translate(${plane.x(x)} ${plane.y(y)})`);
    root.setAttribute(
      "aria-label",
      `Child ${child + 1} at ${number(x, 2)}, ${number(y, 2)}: move it with the arrow keys`,
    );
  };
  return { root, place };
}

/** Children on the left, parents on the right, and a line for each R_ij. */
function labLines(step, parents, children) {
  const height = (place, count) => 15 + ((place + 0.5) * 225) / count;
  const lines = Array.from(step.assignment, (part, edge) => {
    const child = Math.floor(edge / LAB_PARENTS),
      parent = edge % LAB_PARENTS;
    const ends = { x1: 34, y1: height(child, children), x2: 218, y2: height(parent, LAB_PARENTS) };
    if (Number.isNaN(part)) return svg("line", { ...ends, class: "lab-line lab-broken", "stroke-width": 1.5 });
    return svg("line", {
      ...ends,
      class: "lab-line",
      "stroke-width": 0.3 + 11 * part,
      "stroke-opacity": 0.15 + 0.7 * part,
    });
  });
  const left = Array.from({ length: children }, (_, child) =>
    labNode(20, height(child, children), `C${child + 1}`, "lab-child"),
  );
  const right = parents.map((parent, place) =>
    svg(
      "g",
      {},
      labNode(
        232,
        height(place, LAB_PARENTS),
        `P${place + 1}`,
        parent.problem ? "lab-parent lab-broken" : "lab-parent",
      ),
      labParentWords(parent).map((word, line) =>
        svg(
          "text",
          {
            x: 252,
            y: height(place, LAB_PARENTS) - 2 + 14 * line,
            class: parent.problem || parent.alone ? "lab-alarm" : null,
          },
          word,
        ),
      ),
    ),
  );
  return [...lines, ...left, ...right];
}

/** Two short words beside a parent. */
function labParentWords({ problem, alone, starved, effective }) {
  if (problem) return ["not", "finite"];
  if (starved) return ["no", "child"];
  return alone ? ["one", "child"] : [effective.toFixed(1), "children"];
}

function labNode(x, y, text, name) {
  return svg(
    "g",
    { class: name, transform: `translate(${x} ${y})` },
    svg("circle", { r: 14 }),
    svg("text", { class: "lab-node-text" }, text),
  );
}

/** The votes for a parent, as large as R_ij, and its Gaussian: one and two standard deviations around the mean. */
function labVotes(plane, votes, step, { mean, variance }, parent) {
  const [x, y] = mean,
    [sx, sy] = variance.map((value) => plane.x(Math.sqrt(value)));
  const finite = Number.isFinite(x + y + sx + sy);
  const ellipse = (times, name) =>
    svg("ellipse", {
      cx: plane.x(x),
      cy: plane.y(y),
      rx: Math.max(1, times * sx),
      ry: Math.max(1, times * sy),
      class: name,
    });
  const gaussian = finite
    ? [ellipse(2, "lab-two-sigma"), ellipse(1, "lab-one-sigma")]
    : [svg("text", { y: 60, class: "lab-alarm lab-middle" }, "no Gaussian: NaN")];
  const points = Array.from({ length: step.assignment.length / LAB_PARENTS }, (_, child) => {
    const edge = child * LAB_PARENTS + parent,
      part = step.assignment[edge] || 0;
    const at = `translate(${plane.x(votes[edge * 16])} ${plane.y(votes[edge * 16 + 1])})`;
    return svg(
      "g",
      { transform: at, class: "lab-vote" },
      svg("circle", { r: 2 + 7 * Math.sqrt(part) }),
      svg("text", { x: 10, y: 4 }, `${child + 1}`),
    );
  });
  return [...gaussian, ...points];
}

function labParentTable(parents, iteration) {
  const shown = (value, alarming = !Number.isFinite(value)) =>
    labTableCell(number(value, 3), alarming ? "warning" : null);
  const names = [
    "parent",
    "data S",
    "effective children",
    "variance of x",
    "variance of y",
    "log density at the mean",
    "activation",
    null,
  ];
  const rows = parents.map(({ data, effective, alone, variance: [x, y], logDensity, activation, problem }, place) =>
    labTableRow(
      `P${place + 1}`,
      shown(data),
      shown(effective, alone || Number.isNaN(effective)),
      shown(x, !(x > 0)),
      shown(y, !(y > 0)),
      shown(logDensity),
      shown(activation),
      labTableCell(problem ?? "", "warning lab-note"),
    ),
  );
  return labTable(`The parents after iteration ${iteration}`, names, rows);
}
