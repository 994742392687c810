"use strict";
{
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // A link to a folded part opens it.
  const reveal = () => {
    const target = document.querySelector(":target");
    for (let at = target; at; at = at.parentElement) if (at.localName === "details") at.open = true;
    target?.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  addEventListener("load", reveal);
  document.addEventListener("click", event => {
    const link = event.target.closest("a[href^='#']");
    if (!link) return;
    const target = document.getElementById(link.hash.slice(1));
    if (target?.download) { // the name of a table: download it
      event.preventDefault();
      target.click();
    } else if (link.hash === location.hash) reveal();
  });

  // The menu is always open where it has a column of its own.
  const menu = document.querySelector("nav details"), wide = matchMedia("(min-width: 1000px)");
  const unfold = () => { menu.open = wide.matches; };
  wide.addEventListener("change", unfold);
  unfold();
  for (const link of all("nav a")) link.addEventListener("click", unfold);

  // Printing shows everything.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("main details:not([open])");
    for (const part of folded) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of folded) part.open = false; });
  const button = document.querySelector("nav button");
  button.hidden = false;
  button.addEventListener("click", () => {
    const parts = all("main details"), open = parts.some(part => !part.open);
    for (const part of parts) part.open = open;
    unfold();
  });

  // Wide tables say that they scroll, and their second column stays beside the first.
  const measure = () => {
    for (const box of all(".scroll")) {
      box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
      const first = box.querySelector("th");
      if (first) box.style.setProperty("--first", `${first.offsetWidth}px`);
    }
  };
  addEventListener("resize", measure);
  document.addEventListener("toggle", measure, true);
  measure();

  // A click on a heading sorts its table; another one reverses it. Cells without a value come last.
  const SCALES = { ns: 1e-9, "µs": 1e-6, ms: 1e-3, h: 3600 };
  const PREFIXES = { n: -3, "µ": -2, m: -1, k: 1, K: 1, M: 2, G: 3, T: 4, P: 5, E: 6 };
  const number = text => {
    const [, digits, unit] = /^([-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*(\S*)/i.exec(text) ?? [];
    const [, prefix, binary] = /^([nµmkKMGTPE])(i?)(?:B|J|FLOP)/.exec(unit) ?? [];
    const scale = prefix ? (binary ? 1024 : 1000) ** PREFIXES[prefix] : SCALES[unit] ?? 1;
    return digits === undefined ? NaN : Number(digits.replaceAll(",", "")) * scale;
  };
  const order = (a, b, numeric, sign) => {
    if (!numeric) return sign * a.localeCompare(b, "en", { numeric: true });
    const [x, y] = [number(a), number(b)];
    return Number.isNaN(x) - Number.isNaN(y) || sign * (x - y) || 0;
  };
  for (const head of all("thead th")) {
    const sorter = document.createElement("button");
    sorter.append(...head.childNodes);
    head.append(sorter);
    sorter.addEventListener("click", () => {
      const body = head.closest("table").tBodies[0], column = head.cellIndex;
      const cell = row => row.cells[column].textContent.trim(), rows = [...body.rows];
      const numeric = head.classList.contains("n") && rows.some(row => !Number.isNaN(number(cell(row))));
      const sign = head.ariaSort === "ascending" ? -1 : 1;
      for (const other of head.parentElement.cells) other.ariaSort = null;
      head.ariaSort = sign > 0 ? "ascending" : "descending";
      body.append(...rows.sort((a, b) => order(cell(a), cell(b), numeric, sign)));
    });
  }

  // A box above a table shows only the rows that have all of its words, and the values of named columns, as `cp = 4`.
  for (const box of all("input[type=search]")) {
    box.addEventListener("input", () => {
      const table = box.parentElement.querySelector("table"), wanted = [];
      const heads = [...table.tHead.rows[0].cells].map(cell => cell.textContent.toLowerCase());
      const rest = box.value.toLowerCase().replace(/(\S+?)\s*=\s*(\S+)/g, (whole, name, value) => {
        if (!heads.includes(name)) return whole;
        wanted.push([heads.indexOf(name), value]);
        return "";
      });
      const words = rest.split(/\s+/);
      for (const row of table.tBodies[0].rows) {
        const cells = [...row.cells].map(cell => cell.textContent.trim().toLowerCase()), text = cells.join(" ");
        row.hidden = !words.every(word => text.includes(word)) || !wanted.every(([column, value]) => cells[column] === value);
      }
    });
  }

  // A listing can be copied; where the browser refuses, its text is selected.
  for (const button of all(".listing button")) {
    button.addEventListener("click", async () => {
      const listing = button.closest("figure").querySelector("pre");
      try {
        await navigator.clipboard.writeText(listing.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(listing);
        button.textContent = "Selected";
      }
    });
  }

  // The menu marks the part on the screen.
  const links = new Map(all("nav a").map(link => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver(entries => {
    for (const { target, isIntersecting } of entries) {
      links.get(target.id).classList.toggle("here", isIntersecting);
    }
  }, { rootMargin: "-25% 0px -70% 0px" });
  for (const id of links.keys()) watch.observe(document.getElementById(id));
}
