// Before the first paint, so that a dark page never flashes white.
"use strict";
{
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
}
