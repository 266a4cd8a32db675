// Pitfall 3, the paper's Figs. 2 to 4: a child is read at several positions, and these must compete for it.

import { choice, el, number, slider, svg } from "./dom.js";
import { labRoutingMap } from "./lab_map.js";
import { labColumns, labFigure, labPanel, labRandom, labTable, labTableCell, labTableRow } from "./lab_parts.js";
import { convLayer, route, votesOf } from "./routing.js";

const LAB_SPREAD = 0.5; // of the poses' numbers: densities of 16 numbers then have sizes that are easy to read

/** A row of children with one type, read by a row of parents: the layer, its poses (children x 16) and its K matrices. */
export function labRow(seed, children, kernel, stride) {
  const random = labRandom(seed);
  const layer = convLayer({
    grid: [1, children],
    childTypes: 1,
    parentTypes: 1,
    kernel: [1, kernel],
    stride: [1, stride],
  });
  const numbers = (length) => Array.from({ length }, () => LAB_SPREAD * (2 * random() - 1));
  const pose = numbers(children * 16);
  // Matrices near the identity: a parent's votes resemble its children.
  const matrices = numbers(kernel * 16).map((value, at) => 0.2 * value + ((at % 16) % 5 === 0 ? 1 : 0));
  return { layer, pose, matrices, votes: votesOf(layer, pose, matrices) };
}

/**
 * One M-step and one E-step of a row: tables with a row for each parent and a column for each child, null where none reads.
 * joint: a_j p_ij, which the E-step divides. all: R_ij if positions compete. types: R_ij if they do not.
 */
export function labCompetition({ layer, votes }) {
  const settings = { iterations: 2, finalLambda: 1, varianceFloor: 1e-4, dataScaling: "mean" };
  const active = new Float64Array(layer.children).fill(1),
    beta = new Float64Array(1);
  const steps = (competition) => route(layer, votes, active, beta, beta, { ...settings, competition });
  const all = steps("all"),
    types = steps("types");
  return {
    map: labRoutingMap(layer),
    joint: labSparse(layer, all[0].logJoint.map(Math.exp)),
    all: labSparse(layer, all[1].assignment),
    types: labSparse(layer, types[1].assignment),
  };
}

/** Numbers of edges as a table of parents by children. */
function labSparse(layer, values) {
  const table = Array.from({ length: layer.positions }, () => new Array(layer.children).fill(null));
  layer.childOf.forEach((child, edge) => {
    table[Math.floor(edge / layer.reads)][child] = values[edge];
  });
  return table;
}

/** The sum of each column; null for a child that no parent reads. */
export function labColumnSums(table) {
  return table[0].map((_, child) => {
    const entries = table.map((row) => row[child]).filter((value) => value !== null);
    return entries.length ? entries.reduce((sum, value) => sum + value, 0) : null;
  });
}

/** How often a child is counted with and without competition, in words. */
export function labCompetitionSentence({ all, types }, child) {
  const correct = labColumnSums(all)[child],
    wrong = labColumnSums(types)[child];
  if (correct === null) return `No parent reads C${child + 1}, so it has no part in the layer.`;
  const parts = all.flatMap((row, parent) =>
    row[child] === null ? [] : [`${number(row[child], 2)} to P${parent + 1}`],
  );
  if (parts.length === 1)
    return `C${child + 1} gives ${parts[0]}. No other parent reads it, so competition changes nothing.`;
  return (
    `C${child + 1} gives ${parts.join(", ")}: ${number(correct, 3)} in all. Without competition each of its ${parts.length} parents ` +
    `gets all of it, and it is counted ${number(wrong, 3)} times.`
  );
}

export function labPositionsPanel() {
  const state = { seed: 1, children: 5, kernel: 3, stride: 1, child: 2 };
  const control = (label, name, min, max) =>
    slider({
      label,
      min,
      max,
      value: state[name],
      onInput: (value) => {
        state[name] = value;
        rebuild();
      },
    });
  const children = control("Children", "children", 3, 9);
  const kernel = control("Kernel", "kernel", 1, 5),
    stride = control("Stride", "stride", 1, 3);
  const seedText = el("output", { class: "quiet" });
  const another = el(
    "button",
    {
      type: "button",
      onclick: () => {
        state.seed += 1;
        rebuild();
      },
    },
    "Another draw",
  );
  const pick = el("div"),
    pictures = el("div");
  const panel = labPanel({
    title: "Positions must compete",
    sentences: [
      "Parents at neighbouring positions read the same children. In the E-step a child must divide itself over all of them: a nose belongs " +
        "to one face. If only the types of parent at each position compete, every position takes the whole child, and it is counted " +
        "several times.",
      "The row below has one type of parent, so without competing positions there is nothing left to compete, and every R_ij is 1.",
    ],
    attempt: "compare the sums under the last two tables, then make the kernel 5 with 9 children.",
    controls: [children.root, kernel.root, stride.root, pick, el("div", { class: "row" }, another, seedText)],
    pictures,
  });

  const rebuild = () => {
    kernel.input.max = Math.min(5, state.children);
    state.kernel = Math.min(state.kernel, state.children);
    kernel.set(state.kernel);
    state.child = Math.min(state.child, state.children - 1);
    seedText.textContent = `seed ${state.seed}`;
    const row = labRow(state.seed, state.children, state.kernel, state.stride);
    const competition = labCompetition(row);
    const names = Object.fromEntries(Array.from({ length: state.children }, (_, child) => [child, `C${child + 1}`]));
    const chosen = choice({
      label: "Look at child",
      options: names,
      value: String(state.child),
      onChange: (child) => choose(Number(child)),
    });
    const choose = (child) => {
      if (child === state.child) return;
      state.child = child;
      chosen.set(String(child));
      update();
    };
    const update = () => {
      pictures.replaceChildren(...labRowPictures(row.layer, competition, state.child, choose));
      panel.say(labCompetitionSentence(competition, state.child));
    };
    pick.replaceChildren(chosen.root);
    update();
  };
  rebuild();
  return panel.root;
}

function labRowPictures(layer, competition, child, choose) {
  const { map, joint, all, types } = competition;
  const sums = (table) => labTotals(labColumnSums(table), child);
  return [
    labColumns(
      labFigure("M-step: every parent gathers the votes of its children", labConnections(layer, child, "up", choose)),
      labFigure(
        "E-step: every child hears from the parents that read it",
        labConnections(layer, child, "down", choose),
      ),
    ),
    labColumns(
      labTiles(layer, child),
      labByChild("The spatial routing map: 1 where the parent reads the child", map, child, (reads) =>
        reads ? "1" : "0",
      ),
    ),
    labColumns(
      labByChild(
        "Sparse table of densities a_j p_ij after the first M-step: a column for each child",
        joint,
        child,
        labDigits,
      ),
      labByChild("R_ij if positions compete: each column is divided by its sum", all, child, labHundredths, sums(all)),
      labByChild(
        "R_ij without competing positions: each number is divided by itself",
        types,
        child,
        labHundredths,
        sums(types),
      ),
    ),
  ];
}

/** Children below, parents above, with arrows towards those who receive; the chosen child's connections stand out. */
function labConnections(layer, chosen, direction, choose) {
  const { childOf, reads, positions, children, readers } = layer;
  const place = (at, count) => 300 * ((at + 0.5) / count);
  // A parent stands above the middle of its window.
  const above = (parent) =>
    (place(childOf[parent * reads], children) + place(childOf[parent * reads + reads - 1], children)) / 2;
  const arrows = Array.from(childOf, (child, edge) => {
    const ends = [
      [place(child, children), 122],
      [above(Math.floor(edge / reads)), 38],
    ];
    return { child, arrow: labArrow(...(direction === "up" ? ends : ends.reverse()), child === chosen) };
  });
  const node = (x, y, text, name, count, countY) =>
    svg(
      "g",
      { class: name },
      svg("circle", { cx: x, cy: y, r: 13 }),
      svg("text", { x, y, class: "lab-node-text" }, text),
      svg("text", { x, y: countY, class: "lab-middle lab-small" }, count),
    );
  const parents = Array.from({ length: positions }, (_, parent) =>
    node(above(parent), 25, `P${parent + 1}`, "lab-parent", direction === "up" ? `${reads}` : "", 4),
  );
  const below = Array.from({ length: children }, (_, child) => {
    const group = node(
      place(child, children),
      135,
      `C${child + 1}`,
      child === chosen ? "lab-child lab-chosen" : "lab-child",
      direction === "down" ? `${readers[child]}` : "",
      163,
    );
    group.addEventListener("pointerenter", () => choose(child));
    group.addEventListener("click", () => choose(child));
    return group;
  });
  const label =
    direction === "up"
      ? `M-step: each of ${positions} parents reads ${reads} of ${children} children`
      : `E-step: the children hear from ${Array.from(readers).join(", ")} parents`;
  // The chosen child's arrows come last, so that they lie on top.
  arrows.sort((one, other) => (one.child === chosen) - (other.child === chosen));
  return svg(
    "svg",
    { viewBox: "0 -8 300 176", class: "lab-picture", role: "img", "aria-label": label },
    arrows.map(({ arrow }) => arrow),
    parents,
    below,
  );
}

function labArrow([x1, y1], [x2, y2], strong) {
  const angle = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI;
  return svg(
    "g",
    { class: strong ? "lab-arrow lab-strong" : "lab-arrow" },
    svg("line", { x1, y1, x2, y2 }),
    svg("path", { d: "M1 0L-7 -4V4Z", transform: `translate(${x2} ${y2}) rotate(${angle})` }),
  );
}

/** What every parent reads, side by side as the convolution tiles it. */
function labTiles({ childOf, reads, positions }, chosen) {
  const cell = (child) => labTableCell(`C${child + 1}`, child === chosen ? "lab-chosen" : null);
  const rows = Array.from({ length: positions }, (_, parent) =>
    labTableRow(`P${parent + 1}`, Array.from(childOf.slice(parent * reads, (parent + 1) * reads), cell)),
  );
  const names = ["parent", ...Array.from({ length: reads }, (_, n) => `times W${n + 1}`)];
  return labTable(
    "Tiled children: a vote V_ij is a child's pose times the matrix of its place in the window",
    names,
    rows,
  );
}

/** A table with a column for each child; a point where the parent does not read the child. */
function labByChild(caption, table, chosen, format, foot = null) {
  const rows = table.map((row, parent) =>
    labTableRow(
      `P${parent + 1}`,
      row.map((value, child) =>
        labTableCell(value === null ? "·" : format(value), child === chosen ? "lab-chosen" : null),
      ),
    ),
  );
  return labTable(caption, ["parent", ...table[0].map((_, child) => `C${child + 1}`)], rows, foot);
}

function labTotals(sums, chosen) {
  return labTableRow(
    "sum",
    sums.map((sum, child) => {
      if (sum === null) return labTableCell("·");
      return labTableCell(
        labHundredths(sum),
        `${child === chosen ? "lab-chosen " : ""}${sum > 1.0001 ? "warning" : "good"}`,
      );
    }),
  );
}

function labDigits(value) {
  return number(value, 3);
}

function labHundredths(value) {
  return value.toFixed(2);
}
