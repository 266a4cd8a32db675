// The whole network at once: the image, every layer's capsules, the classes, and where the answer came from.

import { choice, el, number, percent, svg } from "./dom.js";
import { css, drawPicture, heatGrid, poseGlyph, rising } from "./draw.js";
import { dataFlow } from "./network.js";
import { layerName, ranking, spreadOf } from "./store.js";

/** A view with `root` and `update(state)`; the parts are built anew for another network. */
export function networkView(store) {
  const root = el("div", { class: "network-view" });
  let built = null;
  const update = (state) => {
    if (!built || built.network !== state.network) {
      built = buildNetwork(store, state);
      root.replaceChildren(built.root);
    }
    built.parts.forEach((part) => part(state));
  };
  return { root, update };
}

function buildNetwork(store, state) {
  const parts = [];
  const add = ({ root, update }) => {
    parts.push(update);
    return root;
  };
  const stages = el(
    "ol",
    { class: "stages" },
    el("li", { class: "card" }, add(imageStage())),
    state.run.results.slice(0, -1).map((_, place) => el("li", { class: "card" }, add(gridStage(store, state, place)))),
    el("li", { class: "card" }, add(classStage(store, state))),
  );
  const capsulesAs = choice({
    label: "Show capsules as",
    options: { activations: "activations", poses: "poses (blue below 0, orange above; pale if not active)" },
    value: state.capsulesAs,
    onChange: (chosen) => store.set({ capsulesAs: chosen }),
  });
  parts.push((now) => capsulesAs.set(now.capsulesAs));
  const root = el(
    "div",
    {},
    el(
      "p",
      {},
      "A capsule is a small group of numbers: an ",
      el("strong", {}, "activation"),
      " says how surely a part is there, and a 4x4 ",
      el("strong", {}, "pose"),
      " says how it lies. Every capsule votes for the poses of the capsules above it. Routing finds votes that agree. ",
      "Click any capsule to see who voted for it.",
    ),
    capsulesAs.root,
    stages,
    el(
      "p",
      { class: "quiet" },
      "Each layer goes through all its iterations before the next layer begins. The slider at the bottom shows the same iteration of every layer.",
    ),
    add(whoWins(state)),
  );
  return { network: state.network, root, parts };
}

function imageStage() {
  const canvas = el("canvas", { class: "seen", role: "img", "aria-label": "What the network sees" });
  const caption = el("p", { class: "quiet" });
  const update = ({ network, run, imageName }) => {
    drawPicture(canvas, run.crop, network.crop, network.crop);
    caption.textContent = `${imageName}: the middle ${network.crop} x ${network.crop} pixels`;
  };
  return { root: el("div", {}, el("h3", {}, "Image"), canvas, caption), update };
}

/** The capsules of one layer: a grid of activations for each type. Picking one shows how it was routed. */
function gridStage(store, state, place) {
  const { network } = state;
  const [grid, types] = place
    ? [network.layers[place - 1].parentGrid, network.layers[place - 1].parentTypes]
    : [network.primary.grid, network.primary.types];
  const { name } = state.run.results[place];
  const title = layerName(name);
  const grids = Array.from({ length: types }, (_, type) =>
    heatGrid({
      rows: grid[0],
      columns: grid[1],
      cell: Math.max(4, Math.floor(64 / grid[1])),
      label: `${title}, type ${type + 1}`,
      onPick: (row, column) => pick(store, place, row * grid[1] + column, type),
      enterPicks: true,
    }),
  );
  const note = el("p", { class: "quiet" });
  const update = ({ run, iteration, layer, position, type: pickedType, capsulesAs }) => {
    const result = run.results[place];
    const activation = place ? result.steps[iteration].activation : result.activation;
    const pose = place ? result.steps[iteration].mean : result.pose;
    const top = capsulesAs === "poses" ? typicalSize(pose) : 1;
    grids.forEach((one, type) => {
      const capsules = Array.from({ length: grid[0] * grid[1] }, (_, cell) => cell * types + type);
      const values = capsules.map((capsule) => activation[capsule]);
      const marked =
        place && place - 1 === layer && type === pickedType
          ? [Math.floor(position / grid[1]), position % grid[1]]
          : null;
      if (capsulesAs === "poses") {
        const poses = capsules.flatMap((capsule) => Array.from(pose.subarray(capsule * 16, capsule * 16 + 16)));
        one.updatePoses(poses, values, { marked, top });
      } else {
        one.update(values, { marked });
      }
    });
    const active = activation.reduce((count, value) => count + (value > 0.5), 0);
    note.textContent = `${active} of ${activation.length} capsules are active (above 0.5)`;
  };
  return {
    root: el(
      "div",
      {},
      el("h3", {}, title),
      el("p", { class: "quiet" }, `${types} types on a grid of ${grid.join(" x ")}`),
      el(
        "div",
        { class: "grids" },
        grids.map((one) => one.root),
      ),
      note,
    ),
    update,
  };
}

/** The size that has the full colour: twice the root mean square, so that a few large numbers do not pale the rest. */
function typicalSize(values) {
  return 2 * Math.sqrt(values.reduce((sum, value) => sum + value * value, 0) / values.length) || 1;
}

/** Show how a capsule was routed; a primary capsule is a child only, so its strongest parent is shown. */
function pick(store, place, cell, type) {
  if (place) {
    store.set({
      layer: place - 1,
      position: cell,
      type,
      read: strongestRead(store.state, place, cell, type),
      view: "layer",
    });
    return;
  }
  const { layer, steps } = store.state.run.results[1];
  const child = cell * layer.childTypes + type;
  const { assignment } = steps[store.state.iteration];
  let best = -1;
  for (let edge = 0; edge < assignment.length; edge++) {
    const isReader = layer.childOf[Math.floor(edge / layer.parentTypes)] === child;
    if (isReader && (best < 0 || assignment[edge] > assignment[best])) best = edge;
  }
  if (best < 0) return; // no window reaches this child
  const edgePlace = Math.floor(best / layer.parentTypes);
  store.set({
    layer: 0,
    position: Math.floor(edgePlace / layer.reads),
    read: edgePlace % layer.reads,
    type: best % layer.parentTypes,
    view: "layer",
  });
}

/** The number of the child that gives a parent most of its data. */
export function strongestRead(state, place, position, type) {
  const { layer, steps } = state.run.results[place];
  const { share } = steps[state.iteration];
  let best = 0;
  for (let n = 1; n < layer.reads; n++) {
    if (
      share[(position * layer.reads + n) * layer.parentTypes + type] >
      share[(position * layer.reads + best) * layer.parentTypes + type]
    )
      best = n;
  }
  return best;
}

function classStage(store, state) {
  const { network } = state;
  const place = network.layers.length;
  const rows = network.names.map((name, classNumber) => {
    const glyph = poseGlyph(`Pose of the class ${name}`);
    const bar = el("span", { class: "bar smooth" }),
      value = el("span", { class: "value" });
    const line = svg("polyline", { class: "spark" });
    const spark = svg(
      "svg",
      { viewBox: "0 0 60 24", class: "spark-frame", "aria-hidden": "true" },
      line,
      svg("circle", { r: 2.5, class: "spark-dot" }),
    );
    const button = el(
      "button",
      { class: "class-row", onclick: () => pick(store, place, 0, classNumber) },
      el("span", { class: "class-name" }, name),
      el("span", { class: "bar-frame" }, bar),
      value,
      spark,
      glyph.root,
    );
    return { button, bar, value, line, spark, glyph };
  });
  const update = ({ run, iteration, truth }) => {
    const { steps } = run.results[place];
    const top = Math.max(1e-9, ...Array.from(steps[iteration].mean, Math.abs));
    rows.forEach(({ button, bar, value, line, spark, glyph }, at) => {
      const active = steps[iteration].activation[at];
      bar.style.width = `${100 * (active || 0)}%`;
      bar.style.background = css(rising(0.25 + 0.6 * active));
      value.textContent = number(active, 3);
      button.classList.toggle("true-class", network.names[at] === truth);
      const points = steps.map((step, t) => [
        steps.length > 1 ? 4 + (52 * t) / (steps.length - 1) : 30,
        21 - 18 * (step.activation[at] || 0),
      ]);
      line.setAttribute("points", points.map((point) => point.join(",")).join(" "));
      const dot = spark.querySelector("circle");
      dot.setAttribute("cx", points[iteration][0]);
      dot.setAttribute("cy", points[iteration][1]);
      glyph.update(steps[iteration].mean.subarray(at * 16, at * 16 + 16), top);
    });
  };
  const note = el(
    "p",
    { class: "quiet" },
    "Bar: activation. Line: how it changed from iteration to iteration. Square: the 16 numbers of the pose, blue below 0, orange above.",
  );
  return {
    root: el(
      "div",
      {},
      el("h3", {}, "class capsules"),
      el("p", { class: "quiet" }, `${network.names.length} classes read everything below`),
      el(
        "div",
        { class: "classes" },
        rows.map((row) => row.button),
      ),
      note,
    ),
    update,
  };
}

/** The winner beside the runner-up: where on the image each one's data came from. */
function whoWins(state) {
  const panels = [0, 1].map((rank) => {
    const [rows, columns] = state.network.primary.grid;
    const heat = heatGrid({
      rows,
      columns,
      cell: 12,
      label: rank ? "Where the runner-up's data came from" : "Where the winner's data came from",
    });
    const title = el("h3"),
      facts = el("p", { class: "quiet" });
    const picture = el("canvas", { class: "under", "aria-hidden": "true" });
    heat.root.prepend(picture);
    heat.root.classList.add("over-picture");
    return { root: el("div", {}, title, heat.root, facts), title, heat, picture, facts, rank };
  });
  const update = (now) => {
    const order = ranking(now);
    const { steps, layer } = now.run.results[now.run.results.length - 1];
    const step = steps[now.iteration];
    const flows = order
      .slice(0, 2)
      .map((one) => dataFlow(now.run, one, now.iteration).map((part) => part * step.data[one]));
    const top = Math.max(...flows.flatMap((flow) => Array.from(flow)));
    panels.forEach(({ title, heat, picture, facts, rank }) => {
      drawPicture(picture, now.run.crop, now.network.crop, now.network.crop);
      const one = order[rank];
      title.textContent = `${rank ? "Runner-up" : "Winner"}: ${now.network.names[one]}`;
      heat.update(flows[rank], { top });
      const share = step.data[one] / step.data.reduce((sum, value) => sum + value, 0);
      facts.textContent = `activation ${number(step.activation[one], 3)}; it holds ${percent(share)} of the children's data (an even share is ${percent(1 / layer.parentTypes)}); votes spread by ${number(spreadOf(step, one), 3)}`;
    });
  };
  return {
    root: el(
      "section",
      { class: "card", "aria-label": "Winner and runner-up" },
      el("h2", {}, "Where did the answer come from?"),
      el(
        "p",
        {},
        "Bright places gave the class its data, traced back through all layers. At iteration 1 every child is shared evenly, so both pictures are the same. A network may well find its answer in what surrounds a thing.",
      ),
      el(
        "div",
        { class: "pair" },
        panels.map((panel) => panel.root),
      ),
    ),
    update,
  };
}
