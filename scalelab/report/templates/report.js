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
// paper is narrower than most screens
const PAPER_WIDTH = 660;
addEventListener("beforeprint", () => {
  for (const box of boxes) Plotly.relayout(box, { width: PAPER_WIDTH });
});
addEventListener("afterprint", () => {
  for (const box of boxes) Plotly.relayout(box, { width: null, autosize: true });
});
