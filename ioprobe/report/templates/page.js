"use strict";
// Every text and every curve was made beforehand: this only chooses which to show.
(function () {
  var root = document.documentElement;
  window.addEventListener("error", function (event) {
    root.setAttribute("data-error", String(event.message));
  });
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (fold) { fold.open = true; });
  });
  var source = document.getElementById("whatif-data");
  if (source) { panel(JSON.parse(source.textContent)); }
  root.setAttribute("data-ready", "1");

  function panel(data) {
    var slider = document.getElementById("workers");
    var selects = Array.prototype.slice.call(document.querySelectorAll("#controls select"));
    var curves = Array.prototype.slice.call(document.querySelectorAll("figure.curve"));
    var readout = document.getElementById("readout");
    var start = data.workers.indexOf(data.current);
    slider.value = String(start < 0 ? 0 : start);
    slider.addEventListener("input", show);
    selects.forEach(function (select) { select.addEventListener("input", show); });
    document.getElementById("controls").addEventListener("submit", function (event) { event.preventDefault(); });
    document.getElementById("controls").hidden = false;
    readout.hidden = false;
    show();

    function show() {
      var key = selects.map(function (select) { return select.value; }).join(",");
      var workers = data.workers[Number(slider.value)];
      var spots = data.curves[key];
      var spot = spots && spots.filter(function (s) { return s.workers === workers; })[0];
      curves.forEach(function (curve) {
        curve.hidden = curve.dataset.key !== key;
        var cursor = curve.querySelector(".cursor");
        cursor.hidden = !spot;
        if (spot) { cursor.style.left = spot.x + "%"; }
      });
      document.getElementById("no-curve").hidden = Boolean(spots);
      var mark = workers === data.current ? " (now)" : workers === data.advised ? " (advised)" : "";
      document.getElementById("workers-out").textContent = workers + mark;
      slider.setAttribute("aria-valuetext", workers + " workers" + mark);
      readout.textContent = "";
      if (!spot) { say("", "not predicted"); return; }
      if (spot.predicted) { say("predicted", spot.predicted); }
      if (spot.measured) { say("measured", spot.measured); }
      if (spot.stall) { say("stall share", spot.stall); }
      if (spot.change) { say("against now", spot.change); }
    }

    function say(label, value) {
      var part = document.createElement("span");
      var strong = document.createElement("b");
      strong.textContent = value;
      part.append(label + (label ? " " : ""), strong);
      readout.append(part, " ");
    }
  }
})();
