"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  // What a reload should not lose. Storage may be switched off.
  const recall = (key) => { try { return sessionStorage.getItem(key); } catch { return null; } };
  const keep = (key, value) => { try { sessionStorage.setItem(key, value); } catch { /* no matter */ } };

  // Colours: as the system, or as chosen.
  const themes = { auto: "as the system", light: "light", dark: "dark" };
  const button = document.getElementById("theme");
  const stored = () => { try { return localStorage.getItem("deepaa-theme"); } catch { return null; } };
  const dress = (name) => {
    if (name === "auto") root.removeAttribute("data-theme"); else root.dataset.theme = name;
    button.setAttribute("aria-label", `Colours: ${themes[name]}`);
    button.title = `Colours: ${themes[name]}`;
    button.textContent = { auto: "◐", light: "☀", dark: "☾" }[name];
    button.dataset.choice = name;
  };
  dress(stored() in themes ? stored() : "auto");
  button.addEventListener("click", () => {
    const names = Object.keys(themes);
    const next = names[(names.indexOf(button.dataset.choice) + 1) % names.length];
    try { localStorage.setItem("deepaa-theme", next); } catch { /* no matter */ }
    dress(next);
  });

  // Tabs: arrows, Home and End move; the address keeps the place. It names no element, so that
  // nothing scrolls.
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const open = (tab) => {
    for (const other of tabs) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", chosen);
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).classList.toggle("open", chosen);
    }
  };
  const choose = (tab) => {
    open(tab);
    history.replaceState(null, "", "#" + tab.dataset.name);
    window.scrollTo(0, 0);
  };
  const fromAddress = () =>
    tabs.find((tab) => "#" + tab.dataset.name === location.hash) || tabs[0];
  open(fromAddress());
  window.addEventListener("hashchange", () => open(fromAddress()));
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = tabs[(to + tabs.length) % tabs.length];
      choose(next);
      next.focus();
    });
  });

  // Tables: a heading sorts by its column, again the other way round.
  const sort = (table, column, direction) => {
    const body = table.tBodies[0];
    const numeric = table.tHead.rows[0].cells[column].classList.contains("number");
    const value = (row) => row.cells[column].dataset.value;
    const order = (a, b) => (numeric ? value(a) - value(b) : value(a).localeCompare(value(b)));
    const sign = direction === "ascending" ? 1 : -1;
    body.append(...[...body.rows].sort((a, b) => sign * order(a, b)));
    [...table.tHead.rows[0].cells].forEach((cell, i) =>
      cell.setAttribute("aria-sort", i === column ? direction : "none"));
  };
  document.querySelectorAll("table[data-sortable]").forEach((table, number) => {
    const key = `deepaa-sort-${number}`;
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      cell.querySelector("button").addEventListener("click", () => {
        const now = cell.getAttribute("aria-sort");
        const first = cell.classList.contains("number") ? "descending" : "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        const direction = now === first ? other : first;
        sort(table, column, direction);
        keep(key, JSON.stringify([column, direction]));
      });
    });
    const before = recall(key);
    if (before && Number(document.body.dataset.reload)) sort(table, ...JSON.parse(before));
  });

  // The same images at other strengths and in other draws: all pictures are in the page.
  const player = document.querySelector("[data-player]");
  if (player) {
    const data = JSON.parse(document.getElementById("strength-data").textContent);
    const slider = document.getElementById("strength");
    const shots = [...player.querySelectorAll(".shots li")];
    const before = Number(document.body.dataset.reload) ? recall("deepaa-strength") : null;
    const [value, number] = before ? JSON.parse(before) : [1, 0];
    let draw = number % data.draws.length;
    slider.value = value;
    const show = () => {
      const strength = Number(slider.value);
      const place = data.strengths.indexOf(strength);
      shots.forEach((shot, i) => {
        const [picture, caption] = data.draws[draw][place][i];
        const image = shot.querySelector("img");
        image.src = data.pictures[picture];
        image.alt = `image ${i + 1}: ${caption}`;
        shot.querySelector("span").textContent = caption;
      });
      const many = data.draws.length > 1 ? ` of ${data.draws.length}` : "";
      document.getElementById("said").textContent = `Strength ${strength}, draw ${draw + 1}${many}`;
      keep("deepaa-strength", JSON.stringify([strength, draw]));
    };
    slider.addEventListener("input", show);
    document.getElementById("another").addEventListener("click", () => {
      draw = (draw + 1) % data.draws.length;
      show();
    });
    show();
  }

  // A page of a run that goes on reads itself anew.
  const seconds = Number(document.body.dataset.reload);
  if (seconds) {
    const again = () => (document.hidden ? setTimeout(again, 1000) : location.reload());
    setTimeout(again, 1000 * seconds);
  }
})();
