"use strict";
const config = {
  responsive: true,
  displaylogo: false,
  modeBarButtons: [["toImage"]],
  scrollZoom: false,
};
const boxes = [];
// Draws the figures of a part; one that is hidden has no width yet.
function draw(part) {
  for (const box of part.querySelectorAll(".plot:empty")) {
    const spec = document.querySelector(`script[data-for="${box.id}"]`);
    const figure = JSON.parse(spec.textContent);
    Plotly.newPlot(box, figure.data, figure.layout, {
      ...config,
      toImageButtonOptions: { filename: box.id, scale: 3 },
    });
    boxes.push(box);
  }
}
const parts = [...document.querySelectorAll(".part")];
function pick(chosen) {
  parts.forEach((part, at) => (part.hidden = at !== chosen));
  draw(parts[chosen]);
}
const picker = document.querySelector(".picker select");
picker?.addEventListener("input", () => pick(picker.selectedIndex));
pick(0);
// Paper holds two figures in a row, in smaller letters.
const PAPER = { width: 330, "font.size": 9, "legend.font.size": 8 };
const SCREEN = { width: null, autosize: true, "font.size": 12, "legend.font.size": 12 };
function resize(layout, most) {
  for (const box of boxes) {
    const spec = document.querySelector(`script[data-for="${box.id}"]`);
    const { height } = JSON.parse(spec.textContent).layout;
    Plotly.relayout(box, { ...layout, height: Math.min(height, most) });
  }
}
addEventListener("beforeprint", () => resize(PAPER, 340));
addEventListener("afterprint", () => resize(SCREEN, Infinity));
