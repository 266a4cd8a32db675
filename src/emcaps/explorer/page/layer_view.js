// One layer: who voted for a parent and how well they agree; how a child divides itself over its parents.

import { dropdown, el, number, percent, scrollBox, svg } from "./dom.js";
import { css, heatGrid, poseGlyph, rising } from "./draw.js";
import { strongestRead } from "./network_view.js";
import { effectiveChildren } from "./routing.js";
import { layerName, mostActive, picked, placeOfChild, readersOf, spreadOf } from "./store.js";

const LONELY = 1.5; // a parent with fewer effective children lives on one child
const WIDTH = 440,
  HEIGHT = 340,
  EDGE = 34; // of the plot of votes

export function layerView(store) {
  const root = el("div", { class: "layer-view" });
  let built = null;
  const update = (state) => {
    const key = [state.network, state.layer];
    if (!built || built.key[0] !== key[0] || built.key[1] !== key[1]) {
      built = { key, ...buildLayer(store, state) };
      root.replaceChildren(built.root);
    }
    built.parts.forEach((part) => part(state));
  };
  return { root, update };
}

function buildLayer(store, state) {
  const parts = [];
  const add = ({ root, update }) => {
    parts.push(update);
    return root;
  };
  const names = Object.fromEntries(state.network.layers.map((layer, place) => [place, layerName(layer.name)]));
  const layerChoice = dropdown({
    label: "Layer",
    options: names,
    value: String(state.layer),
    onChange: (place) => {
      const layer = Number(place),
        result = store.state.run.results[layer + 1];
      const { activation } = result.steps[store.state.iteration];
      const best = mostActive(activation);
      const position = Math.floor(best / result.layer.parentTypes),
        type = best % result.layer.parentTypes;
      store.set({ layer, position, type, read: strongestRead(store.state, layer + 1, position, type) });
    },
  });
  const root = el(
    "div",
    {},
    layerChoice.root,
    el(
      "div",
      { class: "columns" },
      el(
        "section",
        { class: "card", "aria-label": "Choose a parent" },
        add(parentPicker(store, state)),
        add(parentFacts()),
      ),
      el("section", { class: "card", "aria-label": "Votes" }, add(votePlot(store, state))),
    ),
    el(
      "div",
      { class: "columns" },
      el("section", { class: "card", "aria-label": "Children of this parent" }, add(childrenOfParent(store, state))),
      el("section", { class: "card", "aria-label": "Parents of this child" }, add(parentsOfChild(store, state))),
    ),
  );
  return { root, parts };
}

export function parentName(state) {
  const { layer } = picked(state);
  if (layer.kind === "class") return `class ${state.network.names[state.type]}`;
  return `parent of type ${state.type + 1} at row ${Math.floor(state.position / layer.parentGrid[1]) + 1}, column ${(state.position % layer.parentGrid[1]) + 1}`;
}

export function childName(layer, child) {
  const { row, column, type } = placeOfChild(layer, child);
  return `child of type ${type + 1} at row ${row + 1}, column ${column + 1}`;
}

function parentPicker(store, state) {
  const layer = state.network.layers[state.layer];
  const choose = (position, type) =>
    store.set({ position, type, read: strongestRead(store.state, state.layer + 1, position, type) });
  if (layer.kind === "class") {
    const buttons = state.network.names.map((name, type) => el("button", { onclick: () => choose(0, type) }, name));
    const update = ({ type: now }) =>
      buttons.forEach((button, type) => button.setAttribute("aria-pressed", String(type === now)));
    return { root: el("div", {}, el("h2", {}, "Parents"), el("div", { class: "row" }, buttons)), update };
  }
  const [rows, columns] = layer.parentGrid;
  const grids = Array.from({ length: layer.parentTypes }, (_, type) =>
    heatGrid({
      rows,
      columns,
      cell: 9,
      label: `Parents of type ${type + 1}`,
      onPick: (row, column) => choose(row * columns + column, type),
    }),
  );
  const update = (now) => {
    const { activation } = picked(now).step;
    grids.forEach(({ update: draw }, type) => {
      const values = Array.from({ length: rows * columns }, (_, cell) => activation[cell * layer.parentTypes + type]);
      draw(values, { marked: type === now.type ? [Math.floor(now.position / columns), now.position % columns] : null });
    });
  };
  return {
    root: el(
      "div",
      {},
      el("h2", {}, "Parents"),
      el("p", { class: "quiet" }, "Bright is active. Click one."),
      el(
        "div",
        { class: "grids" },
        grids.map((grid) => grid.root),
      ),
    ),
    update,
  };
}

/** What each iteration made of the parent, as a table, with a warning if it lives on one child. */
function parentFacts() {
  const title = el("h3"),
    warning = el("p", { "aria-live": "polite" }),
    glyph = poseGlyph("Pose of this parent");
  const body = el("tbody");
  const head = ["iteration", "activation", "data", "children", "spread", "cost"];
  const table = el(
    "table",
    { class: "plain" },
    el("caption", { class: "hidden-text" }, "This parent by iteration"),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        head.map((text) => el("th", { scope: "col" }, text)),
      ),
    ),
    body,
  );
  const update = (state) => {
    const { result, layer, parent } = picked(state);
    title.textContent = parentName(state);
    const rows = result.steps.map((step, t) => {
      const cells = [
        t + 1,
        step.activation[parent],
        step.data[parent],
        effectiveChildren(layer, step)[parent],
        spreadOf(step, parent),
        step.cost[parent],
      ];
      return {
        cells,
        row: el(
          "tr",
          { class: t === state.iteration ? "now" : null },
          cells.map((cell, place) =>
            el(place ? "td" : "th", place ? {} : { scope: "row" }, place ? number(cell, 3) : String(cell)),
          ),
        ),
      };
    });
    body.replaceChildren(...rows.map(({ row }) => row));
    const [, , data, children] = rows[state.iteration].cells;
    const isLonely = data > 0 && children < LONELY;
    warning.className = isLonely || Number.isNaN(data) ? "warning" : "quiet";
    warning.textContent = childrenSentence(data, children, isLonely);
    glyph.update(
      result.steps[state.iteration].mean.subarray(parent * 16, parent * 16 + 16),
      Math.max(1e-9, ...Array.from(result.steps[state.iteration].mean, Math.abs)),
    );
  };
  const legend = el(
    "p",
    { class: "quiet" },
    "children: how many would give as much if they gave alike. spread: the standard deviation of their votes.",
  );
  return {
    root: el(
      "div",
      { class: "facts" },
      el("div", { class: "row" }, title, glyph.root),
      scrollBox("This parent by iteration", table),
      warning,
      legend,
    ),
    update,
  };
}

function childrenSentence(data, children, isLonely) {
  if (Number.isNaN(data)) return "Routing broke down: the numbers of this parent are NaN.";
  if (isLonely) {
    return `Nearly all of its data comes from one child (${number(children, 3)} in effect): one vote agrees with itself perfectly, so its variance tells nothing (pitfall 1).`;
  }
  return `Its data comes from ${number(children, 3)} children in effect.`;
}

/** The votes for one parent in two of their 16 elements, with the parent's Gaussian: a dot's area is its weight. */
function votePlot(store, state) {
  const layer = state.network.layers[state.layer];
  const elements = Object.fromEntries(
    Array.from({ length: 16 }, (_, h) => [h, `row ${Math.floor(h / 4) + 1}, column ${(h % 4) + 1}`]),
  );
  const own = {}; // axes that the user has chosen
  const draw = () => update(store.state);
  const xChoice = dropdown({
    label: "Across",
    options: elements,
    value: "0",
    onChange: (h) => {
      own.x = Number(h);
      draw();
    },
  });
  const yChoice = dropdown({
    label: "Down",
    options: elements,
    value: "0",
    onChange: (h) => {
      own.y = Number(h);
      draw();
    },
  });
  const plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img" });
  const title = el("h2", {}, "Votes");
  const note =
    layer.kind === "class"
      ? " A class adds each child's place in the image, from 0 to 1, to column 4 of its vote."
      : "";
  const update = (now) => {
    const { result, layer: graph, step, parent, edge: chosen } = picked(now);
    title.textContent = `Votes for ${parentName(now)}`;
    const axes = { ...tighteningAxes(result.steps, parent), ...own };
    xChoice.set(String(axes.x));
    yChoice.set(String(axes.y));
    const dots = Array.from({ length: graph.reads }, (_, n) => {
      const edge = (now.position * graph.reads + n) * graph.parentTypes + now.type;
      return {
        edge,
        n,
        x: result.votes[edge * 16 + axes.x],
        y: result.votes[edge * 16 + axes.y],
        share: step.share[edge],
        firstShare: result.steps[0].share[edge],
      };
    });
    const most = Math.max(...dots.map((dot) => dot.share));
    const gaussian = gaussianOf(step, parent, axes);
    const scale = scales(dots, gaussianOf(result.steps[0], parent, axes));
    plot.replaceChildren(
      ...axisLines(scale),
      ...dots
        .filter((dot) => [dot.x, dot.y, dot.share].every(Number.isFinite))
        .sort((a, b) => b.share - a.share)
        .map((dot) => {
          const radius = 1.5 + 11 * Math.sqrt(dot.share / (most || 1));
          const circle = svg("circle", {
            cx: scale.x(dot.x),
            cy: scale.y(dot.y),
            r: radius,
            class: dot.edge === chosen ? "vote chosen" : "vote",
            fill: css(rising(0.2 + 0.7 * (dot.share / (most || 1)))),
            onclick: () => store.set({ read: dot.n }),
          });
          circle.append(
            svg(
              "title",
              {},
              `${childName(graph, graph.childOf[now.position * graph.reads + dot.n])}: weight ${number(dot.share, 3)}`,
            ),
          );
          return circle;
        }),
      ...ellipses(gaussian, scale),
    );
    plot.setAttribute(
      "aria-label",
      `${dots.length} votes; mean ${number(gaussian.x, 3)} across and ${number(gaussian.y, 3)} down, standard deviations ${number(gaussian.sx, 3)} and ${number(gaussian.sy, 3)}`,
    );
  };
  const root = el(
    "div",
    {},
    title,
    plot,
    el("div", { class: "row" }, xChoice.root, yChoice.root),
    el(
      "p",
      { class: "quiet" },
      `Every dot is the vote of one child; the larger, the more weight it has. The ellipses are the parent's Gaussian, one and two standard deviations wide. Routing moves weight to votes that agree; unless you choose, the axes are the two of 16 in which they tighten the most.${note}`,
    ),
  );
  return { root, update };
}

/** The two elements in which a parent's votes tighten the most from the first to the last iteration. */
function tighteningAxes(steps, parent) {
  const last = steps[steps.length - 1];
  const ratio = (h) => last.variance[parent * 16 + h] / steps[0].variance[parent * 16 + h];
  const [x, y] = Array.from({ length: 16 }, (_, h) => h).sort((a, b) => ratio(a) - ratio(b));
  return { x, y };
}

/** A parent's mean and standard deviation along the two axes. */
function gaussianOf({ mean, variance }, parent, { x, y }) {
  const at = parent * 16;
  return { x: mean[at + x], y: mean[at + y], sx: Math.sqrt(variance[at + x]), sy: Math.sqrt(variance[at + y]) };
}

/** Functions from numbers to places in the plot. They fit the first iteration, so that one sees the cloud tighten. */
function scales(dots, gaussian) {
  const span = (axis, centre, deviation) => {
    const low = Math.min(weightedQuantile(dots, axis, 0.02), centre - 2.2 * deviation),
      high = Math.max(weightedQuantile(dots, axis, 0.98), centre + 2.2 * deviation);
    return Number.isFinite(low) && high > low ? [low, high] : [centre - 1 || -1, centre + 1 || 1];
  };
  const [left, right] = span("x", gaussian.x, gaussian.sx),
    [top, bottom] = span("y", gaussian.y, gaussian.sy);
  const place = (low, high, length) => (value) =>
    Math.min(length + 40, Math.max(-40, EDGE + ((value - low) / (high - low)) * (length - 2 * EDGE)));
  return { x: place(left, right, WIDTH), y: place(top, bottom, HEIGHT), range: { left, right, top, bottom } };
}

/** Where this part of all weight lies below. Votes without weight may be anywhere, and would shrink the rest to a point. */
function weightedQuantile(dots, axis, part) {
  const total = dots.reduce((sum, dot) => sum + dot.firstShare, 0);
  let below = 0;
  for (const dot of [...dots].sort((a, b) => a[axis] - b[axis])) {
    below += dot.firstShare;
    if (below >= part * total) return dot[axis];
  }
  return NaN;
}

function axisLines({ range }) {
  const text = (x, y, value, anchor) => svg("text", { x, y, "text-anchor": anchor, class: "quiet" }, number(value, 3));
  return [
    svg("rect", { x: EDGE / 2, y: EDGE / 2, width: WIDTH - EDGE, height: HEIGHT - EDGE, class: "frame" }),
    text(EDGE, HEIGHT - 3, range.left, "start"),
    text(WIDTH - EDGE, HEIGHT - 3, range.right, "end"),
    text(2, EDGE, range.top, "start"),
    text(2, HEIGHT - EDGE, range.bottom, "start"),
  ];
}

function ellipses({ x, y, sx, sy }, scale) {
  if (![x, y, sx, sy].every(Number.isFinite))
    return [svg("text", { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle", class: "broken" }, "NaN: no Gaussian")];
  return [2, 1].map((size) =>
    svg("ellipse", {
      cx: scale.x(x),
      cy: scale.y(y),
      rx: Math.max(0.5, Math.abs(scale.x(x + size * sx) - scale.x(x))),
      ry: Math.max(0.5, Math.abs(scale.y(y + size * sy) - scale.y(y))),
      class: "gaussian",
    }),
  );
}

/** The window of children that the parent reads, by type: how much data each one gives it. */
function childrenOfParent(store, state) {
  const layer = state.network.layers[state.layer];
  const [rows, columns] = layer.kernel;
  const grids = Array.from({ length: layer.childTypes }, (_, type) =>
    heatGrid({
      rows,
      columns,
      cell: layer.kind === "class" ? 11 : 16,
      label: `Children of type ${type + 1}`,
      onPick: (row, column) => store.set({ read: (row * columns + column) * layer.childTypes + type }),
    }),
  );
  const update = (now) => {
    const { step } = picked(now);
    const at = (cell, type) =>
      step.share[(now.position * layer.reads + cell * layer.childTypes + type) * layer.parentTypes + now.type];
    const all = grids.map((_, type) => Array.from({ length: rows * columns }, (_, cell) => at(cell, type)));
    const top = Math.max(1e-12, ...all.flat());
    grids.forEach(({ update: draw }, type) => {
      const cell = Math.floor(now.read / layer.childTypes);
      draw(all[type], {
        top,
        marked: now.read % layer.childTypes === type ? [Math.floor(cell / columns), cell % columns] : null,
      });
    });
  };
  return {
    root: el(
      "div",
      {},
      el("h2", {}, "Its children"),
      el(
        "p",
        { class: "quiet" },
        `The parent reads ${rows} x ${columns} places with ${layer.childTypes} types each. Bright children give it the most data. Click one.`,
      ),
      el(
        "div",
        { class: "grids" },
        grids.map((grid) => grid.root),
      ),
    ),
    update,
  };
}

/** How the chosen child divides itself over all parents that read it: a row a position, a column a type. */
function parentsOfChild(store, state) {
  const layer = state.network.layers[state.layer];
  const title = el("h2"),
    sum = el("p", { "aria-live": "polite" }),
    frame = scrollBox("Shares of the child");
  const open = el(
    "button",
    { class: "strong", onclick: () => store.set({ view: "vote" }) },
    "See this vote in numbers",
  );
  let places = [],
    grid = null;
  const sharesGrid = (rows) =>
    heatGrid({
      rows,
      columns: layer.parentTypes,
      cell: 24,
      label: "Shares of this child: a row for each position, a column for each type",
      onPick: (row, column) => {
        store.set({ position: Math.floor(places[row] / layer.reads), read: places[row] % layer.reads, type: column });
      },
    });
  const update = (now) => {
    const { step, child } = picked(now);
    title.textContent = `How the ${childName(layer, child)} divides itself`;
    places = readersOf(layer, child);
    const shares = places.map((place) =>
      Array.from({ length: layer.parentTypes }, (_, o) => step.assignment[place * layer.parentTypes + o]),
    );
    const total = shares.flat().reduce((all, share) => all + share, 0);
    const top = Math.max(1e-12, ...shares.flat());
    if (grid?.rows !== places.length) {
      grid = { rows: places.length, ...sharesGrid(places.length) };
      frame.replaceChildren(grid.root);
    }
    const row = places.indexOf(now.position * layer.reads + now.read);
    grid.update(shares.flat(), { top, marked: [row, now.type] });
    sum.className = Math.abs(total - 1) < 1e-6 ? "good" : "warning";
    sum.textContent = sharesSentence(places.length, total, shares[row][now.type]);
  };
  return {
    root: el(
      "div",
      {},
      title,
      el("p", { class: "quiet" }, "Each row is a position that reads the child, each column a type of parent."),
      frame,
      sum,
      open,
    ),
    update,
  };
}

function sharesSentence(positions, total, share) {
  const readers = positions === 1 ? "1 position reads it" : `${positions} positions read it`;
  if (Number.isNaN(total)) return "Routing broke down: the shares of this child are NaN.";
  if (Math.abs(total - 1) < 1e-6) return `${readers}. Its shares sum to 1: ${percent(share)} go to this parent.`;
  return `${readers}, and its shares sum to ${number(total, 4)}: the child is counted that many times, because positions do not compete (pitfall 3).`;
}
