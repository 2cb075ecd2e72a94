"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      const value = (row) => row.cells[column].dataset.value;
      const rows = [...table.tBodies[0].rows];
      const numeric = head.classList.contains("number");
      rows.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        // what is unknown stays last in either order
        if (x === "" || y === "") return (x === "") - (y === "");
        const order = numeric ? x - y : x.localeCompare(y);
        return down ? -order : order;
      });
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      table.tBodies[0].append(...rows);
    });
  });
}
