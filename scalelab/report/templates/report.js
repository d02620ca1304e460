"use strict";
const config = {
  responsive: true,
  displaylogo: false,
  modeBarButtons: [["toImage"]],
  scrollZoom: false,
};
const boxes = [...document.querySelectorAll(".plot")];
for (const box of boxes) {
  const spec = document.querySelector(`script[data-for="${box.id}"]`);
  const figure = JSON.parse(spec.textContent);
  Plotly.newPlot(box, figure.data, figure.layout, {
    ...config,
    toImageButtonOptions: { filename: box.id, scale: 3 },
  });
}
// paper is narrower than most screens, and a page holds more figures that are lower
const PAPER_WIDTH = 660;
const onPaper = (height) => Math.min(0.78 * height, 350);
function resize(size) {
  for (const box of boxes) {
    const spec = document.querySelector(`script[data-for="${box.id}"]`);
    Plotly.relayout(box, size(JSON.parse(spec.textContent).layout.height));
  }
}
addEventListener("beforeprint", () => {
  resize((height) => ({ width: PAPER_WIDTH, height: onPaper(height) }));
});
addEventListener("afterprint", () => {
  resize((height) => ({ width: null, height, autosize: true }));
});
