// Runs before the first paint, so that a page never flashes in the other theme. The rest is shell/theme.js.
(() => {
  try {
    const chosen = localStorage.getItem("benthic.theme");
    if (chosen === '"dark"' || chosen === '"light"') document.documentElement.dataset.theme = JSON.parse(chosen);
  } catch {
    // Storage may be forbidden; then the system's theme holds.
  }
})();
