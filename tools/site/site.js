// Fills the list of versions in the header from versions.js beside the folders of the versions. It works without a server.
document.querySelectorAll(".md-version").forEach((place) => {
  const list = place.querySelector("ul");
  const top = new URL(place.dataset.top, document.baseURI);
  for (const version of window.etbuildVersions || []) {
    const link = document.createElement("a");
    link.className = "md-version__link";
    link.href = new URL(`${version}/index.html`, top);
    link.textContent = version;
    const entry = document.createElement("li");
    entry.className = "md-version__item";
    entry.append(link);
    list.append(entry);
  }
  if (!list.children.length) list.remove();
});

// A table that is wider than the screen can be scrolled with the keys. The theme puts tables into boxes when it has loaded.
window.addEventListener("load", () => {
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((box) => {
    box.tabIndex = 0;
  });
});
