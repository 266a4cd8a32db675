// Turn the toy once round and watch: the winning class's pose moves while its activation stays.

import { el, number, svg } from "./dom.js";
import { runNetwork } from "./network.js";
import { toyImage } from "./pictures.js";
import { mostActive, ranking } from "./store.js";

const CHART_WIDTH = 860,
  CHART_HEIGHT = 260,
  CHART_EDGE = 40;

export function turntableView(store, pictures, setViews) {
  const chart = svg("svg", {
    viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`,
    class: "plot",
    role: "img",
    "aria-label": "Press the button to turn the toy",
  });
  const words = el("p", { "aria-live": "polite" });
  const button = el("button", { class: "strong", onclick: () => turn() }, "Turn it once round");
  const root = el(
    "section",
    { class: "card", "aria-label": "Turntable" },
    el("h2", {}, "Turn the toy"),
    el(
      "p",
      {},
      "A capsule's activation should not care from where a thing is seen; its pose should. Thin lines: the 16 numbers of the pose of its class. Thick line: the activation of that class.",
    ),
    button,
    chart,
    words,
  );
  let turned = null,
    running = false;

  const turn = async () => {
    if (running) return;
    running = true;
    const { network, settings, views, imageName, truth } = store.state;
    const followed = truth
      ? network.names.indexOf(truth)
      : ranking({ ...store.state, iteration: settings.iterations - 1 })[0];
    const rows = [];
    for (let azimuth = 0; azimuth < pictures.azimuths.length; azimuth++) {
      button.textContent = `Turning… ${azimuth + 1} of ${pictures.azimuths.length}`;
      await new Promise((resume) => {
        setTimeout(resume, 0);
      }); // lets the page draw
      const { results } = runNetwork(network, toyImage(pictures, views.toy, { ...views, azimuth }), settings);
      const last = results[results.length - 1];
      rows.push({
        pose: Array.from(last.pose.subarray(followed * 16, followed * 16 + 16)),
        activation: last.activation[followed],
        answer: mostActive(last.activation),
      });
    }
    turned = {
      rows,
      followed,
      of: imageName,
      settings,
      elevation: views.elevation,
      lighting: views.lighting,
      network,
    };
    button.textContent = "Turn it once round";
    running = false;
    update(store.state);
  };

  const update = (state) => {
    root.hidden = !state.views;
    if (!state.views) return;
    const fresh =
      turned &&
      turned.of === state.imageName &&
      turned.settings === state.settings &&
      turned.network === state.network &&
      turned.elevation === state.views.elevation &&
      turned.lighting === state.views.lighting;
    if (!fresh) {
      chart.replaceChildren(
        svg(
          "text",
          { x: CHART_WIDTH / 2, y: CHART_HEIGHT / 2, "text-anchor": "middle", class: "quiet" },
          "Press the button.",
        ),
      );
      words.textContent = "";
      return;
    }
    drawTurn(chart, turned, pictures, state.views.azimuth, (azimuth) => setViews({ azimuth }));
    const { rows, followed } = turned;
    const right = rows.filter((row) => row.answer === followed).length;
    const mean = rows.reduce((sum, row) => sum + row.activation, 0) / rows.length;
    const change = (of) => Math.max(...rows.map(of)) - Math.min(...rows.map(of));
    const moves = Array.from({ length: 16 }, (_, h) => change((row) => row.pose[h]));
    const most = moves.indexOf(Math.max(...moves));
    words.textContent = `The answer is ${state.network.names[followed]} from ${right} of ${rows.length} sides, with a mean activation of ${number(mean, 3)}. Row ${Math.floor(most / 4) + 1}, column ${(most % 4) + 1} of its pose moves the most, by ${number(moves[most], 3)}.`;
  };
  return { root, update };
}

function drawTurn(chart, { rows }, pictures, azimuth, onPick) {
  const poses = rows.flatMap((row) => row.pose);
  const low = Math.min(...poses),
    high = Math.max(...poses);
  const x = (place) => CHART_EDGE + (place / (rows.length - 1)) * (CHART_WIDTH - 2 * CHART_EDGE);
  const y = (share) => CHART_HEIGHT - 26 - share * (CHART_HEIGHT - 46);
  const line = (of, attributes) =>
    svg("polyline", { points: rows.map((row, place) => `${x(place)},${y(of(row))}`).join(" "), ...attributes });
  chart.replaceChildren(
    ...Array.from({ length: 16 }, (_, h) =>
      line((row) => (row.pose[h] - low) / (high - low || 1), { class: "pose-line" }),
    ),
    line((row) => row.activation, { class: "activation-line" }),
    svg("line", { x1: x(azimuth), x2: x(azimuth), y1: y(0), y2: y(1), class: "cursor" }),
    ...pictures.azimuths
      .map((angle, place) =>
        place % 3
          ? null
          : svg("text", { x: x(place), y: CHART_HEIGHT - 6, "text-anchor": "middle", class: "quiet" }, `${angle}°`),
      )
      .filter(Boolean),
    svg("text", { x: 4, y: y(1) + 4, class: "quiet" }, number(high, 2)),
    svg("text", { x: 4, y: y(0), class: "quiet" }, number(low, 2)),
    svg("text", { x: CHART_WIDTH - 4, y: y(1) + 4, "text-anchor": "end", class: "quiet" }, "1"),
    svg("text", { x: CHART_WIDTH - 4, y: y(0), "text-anchor": "end", class: "quiet" }, "0"),
  );
  chart.setAttribute("aria-label", "The 16 numbers of the pose and the activation of the class, against the azimuth");
  chart.onclick = (event) => {
    const box = chart.getBoundingClientRect();
    const place = Math.round(
      (((event.clientX - box.left) / box.width) * CHART_WIDTH - CHART_EDGE) /
        ((CHART_WIDTH - 2 * CHART_EDGE) / (rows.length - 1)),
    );
    onPick(Math.min(rows.length - 1, Math.max(0, place)));
  };
}
