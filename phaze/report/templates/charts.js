{
  const COLOURS = {{ colours | tojson }};
  const MARKS = ["blue", "amber", "teal", "purple", "sky", "red", "sand", "grey"];
  const css = getComputedStyle(document.documentElement);
  const colour = name => css.getPropertyValue(`--${name}`).trim() || COLOURS[name];
  const screenColours = text => {
    for (const [name, hex] of Object.entries(COLOURS)) text = text.replaceAll(hex, colour(name));
    return text;
  };

  const config = width => {
    const label = { labelColor: colour("ink"), labelFontSize: 12, labelFontWeight: "normal" };
    const title = { titleColor: colour("muted"), titleFontSize: 12, titleFontWeight: "normal" };
    return {
      background: "transparent",
      autosize: { type: "fit-x", contains: "padding" },
      font: getComputedStyle(document.body).fontFamily,
      axis: { ...label, ...title, labelLimit: 0, gridColor: colour("grid"),
        domainColor: colour("silver"), tickColor: colour("silver") },
      axisX: { labelFlush: true, tickCount: Math.max(3, Math.floor(width / 120)) },
      legend: { ...label, ...title, orient: "top", title: null, labelLimit: width, symbolType: "square",
        columns: Math.max(1, Math.floor((width - 130) / 150)) },
      header: { ...label, ...title },
      view: { stroke: null },
      range: { category: MARKS.map(colour) },
      rule: { color: colour("muted") },
      text: { color: colour("ink"), fontSize: 12 },
    };
  };

  // The wheel with Ctrl, which a pinch sends as well, zooms around the pointer.
  const zoomWith = (view, most) => event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const share = Math.min(1, Math.max(0, (event.offsetX - view.origin()[0]) / view.width()));
    const [zoom, at] = [view.signal("zoom"), view.signal("at")];
    const next = Math.min(most, Math.max(0, zoom - Math.sign(event.deltaY) / 4));
    const [before, after] = [2 ** -zoom, 2 ** -next];
    const start = at * (1 - before) + share * (before - after);
    view.signal("zoom", next).signal("at", after < 1 ? Math.min(1, Math.max(0, start / (1 - after))) : 0).run();
  };

  const draw = async place => {
    const spec = JSON.parse(screenColours(place.querySelector("script").textContent));
    const target = place.querySelector("div");
    place.dataset.width = place.clientWidth;
    const { view } = await vegaEmbed(target, spec, {
      mode: "vega-lite", ast: true, actions: false, renderer: "svg", config: config(place.clientWidth), tooltip: { theme: "custom" },
    });
    place.dataset.drawn = "";
    const zoom = spec.params?.find(param => param.name === "zoom");
    if (zoom) target.querySelector("svg").addEventListener("wheel", zoomWith(view, zoom.bind.max));
  };

  // A chart is drawn once it is near the screen, and again if its width or the colours of the screen change.
  const places = [...document.querySelectorAll(".plot")];
  const near = new IntersectionObserver(entries => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      draw(target);
    }
  }, { rootMargin: "400px" });
  for (const place of places) near.observe(place);
  const again = () => {
    for (const place of places) if ("drawn" in place.dataset && place.clientWidth) draw(place);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let later;
  addEventListener("resize", () => {
    clearTimeout(later);
    later = setTimeout(() => {
      if (places.some(place => "drawn" in place.dataset && +place.dataset.width !== place.clientWidth)) again();
    }, 150);
  });
}
