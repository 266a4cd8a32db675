// The pitfall laboratory: the figures of "Avoiding implementation pitfalls of matrix capsules with EM routing" (Gritzman, 2019), live.

import { el } from "./dom.js";
import { labMapPanel } from "./lab_map.js";
import { labOneChildPanel } from "./lab_one_child.js";
import { labPositionsPanel } from "./lab_positions.js";
import { labRangePanel } from "./lab_range.js";

/** Fill `root` with the four panels. The last one follows `store`: its state's `network` and `run`. */
export function mountLaboratory(root, store) {
  root.replaceChildren(
    el("h2", {}, "The pitfall laboratory"),
    el(
      "p",
      {},
      "Three mistakes are easy to make when EM routing is written down as a program. Each can be made here, and seen. " +
        "All numbers are computed in this page.",
    ),
    el("div", { class: "lab" }, labOneChildPanel(), labRangePanel(store), labPositionsPanel(), labMapPanel()),
  );
}
