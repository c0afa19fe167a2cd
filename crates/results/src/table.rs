//! Markdown tables from records.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::data::take;
use crate::manifest::{Column, Fields, Table, matches};

/// Writes a table. Records with the same text in the row columns share a row, records with the same text in the pivot columns a group of
/// columns; both keep the order in which they first come.
///
/// # Errors
///
/// If a cell has several values and its column does not select one.
pub fn markdown(table: &Table, records: &[Fields]) -> Result<String> {
    let records: Vec<&Fields> = records.iter().filter(|record| matches(record, &table.filter)).collect();
    let rows = distinct(&records, &table.rows);
    let groups = distinct(&records, &table.pivot);
    let mut heads: Vec<String> = table.rows.iter().map(|column| column.head.clone()).collect();
    for group in &groups {
        let of_cell = |cell: &Column| format!("{} {}", group.join(", "), cell.head).trim().to_owned();
        heads.extend(table.cells.iter().map(of_cell));
    }
    heads.extend(table.after.iter().map(|column| column.head.clone()));
    let mut text = line(&heads);
    let rules = heads.iter().enumerate().map(|(at, _)| if at < table.rows.len() { "---" } else { "--:" });
    text += &line(&rules.map(str::to_owned).collect::<Vec<_>>());
    for row in &rows {
        let of_row: Vec<&Fields> =
            records.iter().copied().filter(|record| written(record, &table.rows) == *row).collect();
        let mut cells = row.clone();
        for group in &groups {
            let inside: Vec<&Fields> =
                of_row.iter().copied().filter(|record| written(record, &table.pivot) == *group).collect();
            for column in &table.cells {
                cells.push(cell(column, &inside).with_context(|| format!("row {}", row.join(", ")))?);
            }
        }
        for column in &table.after {
            cells.push(cell(column, &of_row).with_context(|| format!("row {}", row.join(", ")))?);
        }
        text += &line(&cells);
    }
    Ok(text)
}

/// The text of one cell.
///
/// # Errors
///
/// If there are several values and the column does not select one.
pub fn cell(column: &Column, records: &[&Fields]) -> Result<String> {
    let values: Vec<Option<Value>> = records.iter().map(|record| value(column, record)).collect();
    let chosen = take(&values, column.take).with_context(|| format!("column {}", column.field))?;
    Ok(column.format.write(chosen.as_ref(), column.digits))
}

/// The value of a column: the field, divided by another if the column names one.
#[must_use]
pub fn value(column: &Column, record: &Fields) -> Option<Value> {
    let value = record.get(&column.field)?;
    let Some(over) = &column.over else { return Some(value.clone()) };
    let quotient = value.as_f64()? / record.get(over)?.as_f64()?;
    serde_json::Number::from_f64(quotient).map(Value::Number)
}

/// The texts of some columns of a record.
fn written(record: &Fields, columns: &[Column]) -> Vec<String> {
    columns.iter().map(|column| column.format.write(value(column, record).as_ref(), column.digits)).collect()
}

fn distinct(records: &[&Fields], columns: &[Column]) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    for record in records {
        let texts = written(record, columns);
        if !found.contains(&texts) {
            found.push(texts);
        }
    }
    found
}

fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn records() -> Vec<Fields> {
        let rows = json!([
            {"net": "a", "planner": "x", "limit": 0.3, "ratio": 1.2, "paper": 1.1},
            {"net": "a", "planner": "x", "limit": 0.5, "ratio": 1.5, "paper": 1.1},
            {"net": "a", "planner": "y", "limit": 0.3, "ratio": null, "paper": 1.1},
            {"net": "b", "planner": "y", "limit": 0.3, "ratio": 1.0, "paper": 2.0},
        ]);
        serde_json::from_value(rows).unwrap()
    }

    #[test]
    fn a_pivot_makes_columns_and_missing_values_are_dashes() {
        let table: Table = toml::from_str(
            "rows = [{ field = 'net', head = 'network' }]
            pivot = [{ field = 'planner', format = 'code' }]
            cells = [{ field = 'ratio', format = 'number', take = 'max' }]
            after = [{ field = 'paper', head = 'paper', format = 'number', digits = 1 }]",
        )
        .unwrap();
        let text = "| network | `x` | `y` | paper |\n| --- | --: | --: | --: |\n\
                    | a | 1.50 | – | 1.1 |\n| b | – | 1.00 | 2.0 |\n";
        assert_eq!(markdown(&table, &records()).unwrap(), text);
    }

    #[test]
    fn several_values_in_a_cell_are_an_error_unless_one_is_chosen() {
        let table: Table =
            toml::from_str("rows = [{ field = 'net' }]\ncells = [{ field = 'ratio', format = 'number' }]")
                .unwrap();
        assert!(markdown(&table, &records()).unwrap_err().to_string().contains("row a"));
    }

    #[test]
    fn without_pivot_the_cells_follow_the_rows() {
        let table: Table = toml::from_str(
            "where = { planner = 'x' }
            rows = [{ field = 'net', head = 'network' }, { field = 'limit', head = 'limit, %', format = 'percent', digits = 0 }]
            cells = [{ field = 'ratio', head = '÷ paper', format = 'above', over = 'paper', digits = 0 }]",
        )
        .unwrap();
        let text =
            "| network | limit, % | ÷ paper |\n| --- | --- | --: |\n| a | 30 | +9 |\n| a | 50 | +36 |\n";
        assert_eq!(markdown(&table, &records()).unwrap(), text);
    }
}
