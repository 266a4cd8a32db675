// The paper's Fig. 5: which parent positions read which child positions, for any kernel and stride on a square grid.

import { el, slider } from "./dom.js";
import { css, inkOn, rising } from "./draw.js";
import { labCells, labCellText, labCount, labFigure, labGrid, labKey, labOutline, labPanel } from "./lab_parts.js";
import { convLayer } from "./routing.js";

const LAB_MOST_NAMED = 12; // children that are named before the sentence ends with "and ... more"

/** The spatial routing map of a layer with one type of child: a row for each parent position, a column for each child position. */
export function labRoutingMap(layer) {
  return Array.from({ length: layer.positions }, (_, parent) => {
    const row = new Array(layer.children).fill(false);
    for (let n = 0; n < layer.reads; n++) row[layer.childOf[parent * layer.reads + n]] = true;
    return row;
  });
}

/** A square layer's map, the parents that read each child, and the children that no parent reads. */
export function labWindows(grid, kernel, stride) {
  const layer = convLayer({
    grid: [grid, grid],
    childTypes: 1,
    parentTypes: 1,
    kernel: [kernel, kernel],
    stride: [stride, stride],
  });
  const unread = Array.from(layer.readers.keys()).filter((child) => layer.readers[child] === 0);
  return { layer, map: labRoutingMap(layer), readers: Array.from(layer.readers), unread };
}

/** "row 2, column 3" of a place that is counted row by row. */
function labPlace(place, columns) {
  return `row ${Math.floor(place / columns) + 1}, column ${(place % columns) + 1}`;
}

/** Who reads whom, in words, for one parent and one child. */
export function labWindowSentence({ layer, map, readers }, parent, child) {
  const among = map[parent][child] ? `, ${readers[child] === 1 ? "this one" : "this one among them"}` : "";
  const by = readers[child] === 0 ? "no parent" : labCount(readers[child], "parent", "parents");
  return (
    `The parent at ${labPlace(parent, layer.parentGrid[1])} reads ${labCount(layer.reads, "child", "children")}. ` +
    `The child at ${labPlace(child, layer.grid[1])} is read by ${by}${among}.`
  );
}

/** The children that no parent reads, by name. */
export function labUnreadSentence({ layer, unread }) {
  if (!unread.length) return "Every child is read.";
  const named = unread
    .slice(0, LAB_MOST_NAMED)
    .map((place) => labPlace(place, layer.grid[1]))
    .join("; ");
  const more = unread.length > LAB_MOST_NAMED ? `; and ${unread.length - LAB_MOST_NAMED} more` : "";
  return `No parent reads ${labCount(unread.length, "child", "children")}: ${named}${more}.`;
}

export function labMapPanel() {
  const state = { grid: 7, kernel: 3, stride: 2, parent: 0, child: 0 };
  const pictures = el("div"),
    blue = () => labKey("lab-blue"),
    orange = () => labKey("lab-orange");
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
  const grid = control("Grid of children: rows and columns", "grid", 3, 8);
  const kernel = control("Kernel", "kernel", 1, 5),
    stride = control("Stride", "stride", 1, 4);
  const panel = labPanel({
    title: "Who reads whom",
    sentences: [
      "A parent reads a window of children, and windows overlap: most children are read by several parents, those at the edge by fewer. " +
        "The spatial routing map has a row for each parent and a column for each child, filled where the parent reads the child.",
      "The E-step needs this map: a child divides itself over all parents in its column, and over no others.",
    ],
    attempt:
      "point at a cell, or walk with the arrow keys. Make the grid 8 with a stride of 2: nobody reads the last row and column.",
    controls: [grid.root, kernel.root, stride.root],
    pictures,
  });

  const rebuild = () => {
    kernel.input.max = Math.min(5, state.grid);
    state.kernel = Math.min(state.kernel, state.grid);
    kernel.set(state.kernel);
    const windows = labWindows(state.grid, state.kernel, state.stride);
    const { layer, unread } = windows,
      [rows, columns] = layer.parentGrid;
    state.parent = Math.floor(layer.positions / 2);
    state.child = layer.childOf[state.parent * layer.reads]; // the first child of its window
    const choose = (parent, child) => {
      if (parent === state.parent && child === state.child) return;
      Object.assign(state, { parent, child });
      update();
    };
    const children = labGrid({
      rows: state.grid,
      columns: state.grid,
      side: 38,
      label: "Children: arrow keys choose one",
      onPick: (row, column) => choose(state.parent, row * state.grid + column),
    });
    const parents = labGrid({
      rows,
      columns,
      side: 38,
      label: "Parents: arrow keys choose one",
      onPick: (row, column) => choose(row * columns + column, state.child),
    });
    const map = labGrid({
      rows: layer.positions,
      columns: layer.children,
      side: 14,
      onPick: choose,
      label: "Spatial routing map: arrow keys choose a parent and a child",
    });
    const update = () => {
      children.draw(labChildCells(windows, state), [Math.floor(state.child / state.grid), state.child % state.grid]);
      parents.draw(labParentCells(windows, state), [Math.floor(state.parent / columns), state.parent % columns]);
      map.draw(labMapCells(windows, state), [state.parent, state.child]);
      panel.say(labWindowSentence(windows, state.parent, state.child));
    };
    pictures.replaceChildren(
      el(
        "div",
        { class: "lab-flow" },
        labFigure(
          [
            `${layer.children} children, with the number of parents that read each. `,
            blue(),
            " the parent's window, ",
            orange(),
            " child",
          ],
          children.root,
        ),
        labFigure(
          [
            `${labCount(layer.positions, "parent", "parents")}; those that read the child are filled. `,
            blue(),
            " parent",
          ],
          parents.root,
        ),
        labFigure(
          [
            "Spatial routing map: a row for each parent, a column for each child. ",
            blue(),
            " parent, ",
            orange(),
            " child",
          ],
          map.root,
        ),
      ),
      el("p", { class: unread.length ? "warning" : "quiet" }, labUnreadSentence(windows)),
    );
    update();
  };
  rebuild();
  return panel.root;
}

function labChildCells({ layer, readers }, { parent, child, grid, kernel, stride }) {
  const most = Math.max(...readers),
    columns = layer.parentGrid[1];
  const colours = readers.map((count) => rising(count / most));
  const place = (at) => [Math.floor(at / grid), at % grid];
  const cells = colours.map((colour, at) => labCells([place(at)], { style: `fill:${css(colour)}`, class: "lab-cell" }));
  const texts = readers.map((count, at) => labCellText(...place(at), count, inkOn(colours[at])));
  const window = labOutline(
    Math.floor(parent / columns) * stride,
    (parent % columns) * stride,
    kernel,
    kernel,
    "lab-blue",
  );
  return [...cells, ...texts, window, labOutline(...place(child), 1, 1, "lab-orange")];
}

function labParentCells({ layer, map }, { parent, child }) {
  const columns = layer.parentGrid[1];
  const place = (at) => [Math.floor(at / columns), at % columns];
  const all = Array.from(map.keys());
  const reading = all.filter((at) => map[at][child]);
  return [
    labCells(all.map(place), { class: "lab-cell lab-plain" }),
    labCells(reading.map(place), { class: "lab-cell lab-reading" }),
    labOutline(...place(parent), 1, 1, "lab-blue"),
  ];
}

function labMapCells({ layer, map }, { parent, child }) {
  const read = map.flatMap((row, at) => row.flatMap((reads, column) => (reads ? [[at, column]] : [])));
  return [
    labCells(read, { class: "lab-read" }),
    labOutline(parent, 0, 1, layer.children, "lab-blue"),
    labOutline(0, child, layer.positions, 1, "lab-orange"),
  ];
}
