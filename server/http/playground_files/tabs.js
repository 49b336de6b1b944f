// The two views, as tabs: arrow keys move between them, the address keeps which one is shown.

const tabs = [...document.querySelectorAll('[role="tab"]')];

function show(tab, focus) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", String(chosen));
    each.tabIndex = chosen ? 0 : -1;
    document.getElementById(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (focus) tab.focus();
  history.replaceState(null, "", tab.id === "tab-chat" ? location.pathname : "#fleet");
  document.dispatchEvent(new CustomEvent("view", { detail: tab.id }));
}

tabs.forEach((tab, place) => {
  tab.addEventListener("click", () => show(tab, false));
  tab.addEventListener("keydown", (event) => {
    const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(tabs[(to + tabs.length) % tabs.length], true);
  });
});

if (location.hash === "#fleet") show(tabs[1], false);
