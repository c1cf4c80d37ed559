// Sorts a table by a column when its heading is clicked. The order is kept when the table is updated.
"use strict";

const orders = {}; // table name to sort column and direction

function valueOf(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.sort ?? cell.innerText.trim();
  const number = parseFloat(text.replace("\u2212", "-"));
  return Number.isNaN(number) || /^[a-z]/i.test(text) ? text.toLowerCase() : number;
}

function sort(table) {
  const order = orders[table.dataset.sortable];
  if (!order) return;
  const rows = [...table.tBodies[0].rows];
  const sorted = rows.map((row) => [valueOf(row, order.column), row]).sort(([a], [b]) => {
    const before = typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
    return order.down ? -before : before;
  }).map(([, row]) => row);
  if (sorted.some((row, i) => row !== rows[i])) table.tBodies[0].append(...sorted);
}

function prepare(table) {
  const order = orders[table.dataset.sortable];
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    if (cell.tagName !== "TH") return;
    if (!cell.querySelector("button")) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...cell.childNodes);
      button.addEventListener("click", () => {
        const previous = orders[table.dataset.sortable];
        orders[table.dataset.sortable] = { column, down: previous?.column === column ? !previous.down : false };
        prepare(table);
      });
      cell.append(button);
    }
    if (order?.column === column) cell.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
  sort(table);
}

function prepareAll() {
  for (const table of document.querySelectorAll("[data-sortable]")) prepare(table);
}

prepareAll();
document.addEventListener("updated", prepareAll);
