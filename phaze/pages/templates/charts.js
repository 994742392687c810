{
  const COLOURS = {{ colours | tojson }};
  const MARKS = ["blue", "amber", "teal", "purple", "sky", "red", "sand", "grey"];
  const css = getComputedStyle(document.documentElement);
  const colour = name => css.getPropertyValue(`--${name}`).trim() || COLOURS[name];
  const screenColours = text => {
    for (const [name, hex] of Object.entries(COLOURS)) text = text.replaceAll(hex, colour(name));
    return text;
  };

  // Panels are as many beside each other as there is room for; other charts take the width of their place.
  const inColumns = (spec, width) => {
    if (!spec.facet) return spec;
    const columns = Math.max(1, Math.min(spec.columns, Math.floor(width / 260)));
    return { ...spec, columns, spec: { ...spec.spec, width: Math.floor(width / columns) - 60 } };
  };

  const config = (width, panels) => {
    const label = { labelColor: colour("ink"), labelFontSize: 12, labelFontWeight: "normal" };
    const title = { titleColor: colour("muted"), titleFontSize: 12, titleFontWeight: "normal" };
    return {
      background: "transparent",
      autosize: { type: panels ? "pad" : "fit-x", contains: "padding" },
      font: getComputedStyle(document.body).fontFamily,
      axis: { ...label, ...title, labelLimit: 0, gridColor: colour("grid"),
        domainColor: colour("silver"), tickColor: colour("silver") },
      axisX: { labelFlush: 30, titleAnchor: "end", tickCount: Math.max(3, Math.floor(width / (panels || 1) / 120)) },
      legend: { ...label, ...title, orient: "top", title: null, labelLimit: width, symbolType: "square", symbolOpacity: 1,
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
    const width = place.clientWidth;
    const spec = inColumns(JSON.parse(screenColours(place.querySelector("script").textContent)), width);
    const target = place.querySelector("div");
    place.dataset.width = width;
    const { view } = await vegaEmbed(target, spec, {
      mode: "vega-lite", ast: true, actions: false, renderer: "svg", config: config(width, spec.facet && spec.columns), tooltip: { theme: "custom" },
    });
    const room = spec.facet ? Math.floor((width - target.querySelector("svg").width.baseVal.value) / spec.columns) : 0;
    if (room) await view.signal("child_width", view.signal("child_width") + room).resize().runAsync();
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
  // Before printing all others are drawn; this is done when the event ends, because drawing waits for nothing.
  addEventListener("beforeprint", () => {
    for (const place of places) if (!("width" in place.dataset) && place.clientWidth) draw(place);
  });
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
