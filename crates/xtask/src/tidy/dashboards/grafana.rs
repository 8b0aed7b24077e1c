//! The JSON of a Grafana dashboard.

use serde_json::{Value, json};

use super::Naming;
use super::names::Names;
use super::panels::{Panel, ROWS};

/// Width of the dashboard in Grafana's grid.
const WIDTH: usize = 24;
const PANEL_HEIGHT: usize = 7;

/// The dashboard.
///
/// # Errors
/// A panel names a metric that the server does not have.
pub(super) fn dashboard(names: &Names) -> Result<String, String> {
    let (title, first) = match names.naming {
        Naming::Own => ("candlepower", "candlepower_build_info"),
        Naming::Vllm => ("candlepower (names of vLLM)", "vllm:num_requests_running"),
    };
    let mut variables = vec![
        json!({"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}),
        variable("job", &format!("label_values({first}, job)")),
        variable("instance", &format!("label_values({first}{{job=~\"$job\"}}, instance)")),
    ];
    let mut selector = "job=~\"$job\",instance=~\"$instance\"".to_owned();
    if names.naming == Naming::Vllm {
        let query = format!("label_values({first}{{job=~\"$job\"}}, model_name)");
        variables.push(variable("model_name", &query));
        selector = format!("model_name=~\"$model_name\",{selector}");
    }
    let mut panels = Vec::new();
    let (mut y, mut id) = (0, 0);
    for row in ROWS {
        id += 1;
        panels.push(json!({
            "id": id, "type": "row", "title": row.title, "collapsed": false, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
        }));
        y += 1;
        // No row has a gap at its end.
        let columns = if row.panels.len().is_multiple_of(4) { 4 } else { 3 };
        let width = WIDTH / columns;
        for panels_of_line in row.panels.chunks(columns) {
            for (column, panel) in panels_of_line.iter().enumerate() {
                id += 1;
                let place = json!({
                    "x": column * width, "y": y, "w": width, "h": PANEL_HEIGHT,
                });
                panels.push(time_series(panel, id, place, names, &selector)?);
            }
            y += PANEL_HEIGHT;
        }
    }
    let dashboard = json!({
        "uid": names.naming.stem(), "title": title, "tags": ["candlepower", "llm"],
        "description": "Written by `cargo xtask docs`.",
        "schemaVersion": 38, "version": 1, "editable": true, "graphTooltip": 1,
        "refresh": "10s", "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": variables}, "panels": panels,
        "annotations": {"list": []}, "links": [],
    });
    let text = serde_json::to_string_pretty(&dashboard).map_err(|error| error.to_string())?;
    Ok(text + "\n")
}

/// A choice of values of a label.
fn variable(name: &str, query: &str) -> Value {
    json!({
        "type": "query", "name": name, "datasource": datasource(), "query": query, "definition": query,
        "refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    })
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

fn time_series(
    panel: &Panel,
    id: usize,
    place: Value,
    names: &Names,
    selector: &str,
) -> Result<Value, String> {
    let mut targets = Vec::new();
    for (index, line) in panel.lines.iter().enumerate() {
        let expression = names.fill(line.1, selector)?.replace("$rate", "$__rate_interval");
        // Letters name the lines of a panel.
        let letter = char::from(b'A' + index as u8).to_string();
        targets.push(json!({
            "refId": letter, "datasource": datasource(), "expr": expression,
            "legendFormat": names.fill(line.0, "")?, "range": true, "editorMode": "code",
        }));
    }
    Ok(json!({
        "id": id, "type": "timeseries", "title": panel.title, "description": panel.help,
        "gridPos": place, "datasource": datasource(), "targets": targets,
        "fieldConfig": {
            "defaults": {"unit": panel.unit.name(), "min": 0, "custom": {"fillOpacity": 8, "lineWidth": 1, "showPoints": "never"}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": true},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }))
}
