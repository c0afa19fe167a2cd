// The theme is that of the system until the button changes it.
{
  const root = document.documentElement, button = document.getElementById("theme");
  const set = theme => { root.dataset.theme = theme; button.textContent = theme === "dark" ? "Light" : "Dark"; };
  set(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  button.addEventListener("click", () => set(root.dataset.theme === "dark" ? "light" : "dark"));
}
