//! The page of `report` in a browser: built with the feature `chromium`, because a machine without a browser cannot run it.

mod support;

use std::path::Path;
use std::process::Command;

use support::expect_both;

/// Appended to a page: plays a user, and writes down what the page then shows.
const USER: &str = r#"<script>{
const seen = [], canvas = document.getElementById("map"), details = document.getElementById("details");
const key = k => canvas.dispatchEvent(new KeyboardEvent("keydown", { key: k, bubbles: true }));
seen.push(document.getElementById("figures").children.length >= 6 ? "figures" : "no figures");
key("."); seen.push(details.textContent.includes("at offset") ? "key selects" : "key selects nothing");
const first = details.textContent; key("."); seen.push(details.textContent !== first ? "next" : "no next");
const before = to - from; key("+"); seen.push(to - from < before ? "zoomed" : "not zoomed");
key("ArrowRight"); seen.push(from > 0 ? "panned" : "not panned"); key("0"); seen.push(from === 0 && to === total ? "all" : "not all");
const search = document.getElementById("search"); search.value = "layer1"; search.dispatchEvent(new Event("input"));
seen.push(/^[1-9].* found/.test(document.getElementById("found").textContent) ? "found" : "not found");
search.value = ""; search.dispatchEvent(new Event("input"));
draw();
const i = r.bytes.indexOf(Math.max(...r.bytes)), box = canvas.getBoundingClientRect(), { arena } = layout();
const px = x((start(i) + end(i)) / 2), py = arena[1] - (r.offset[i] + r.bytes[i] / 2) / arenaTop * (arena[1] - arena[0]);
const pointer = type => canvas.dispatchEvent(new PointerEvent(type, { clientX: box.left + px + 1, clientY: box.top + py + 1, pointerId: 1, bubbles: true }));
canvas.setPointerCapture = () => {};
pointer("pointerdown"); pointer("pointerup"); seen.push(selected === i ? "click selects" : "click selects " + selected);
const theme = document.documentElement.dataset.theme; document.getElementById("theme").click();
seen.push(document.documentElement.dataset.theme !== theme ? "theme" : "no theme");
document.title = "seen: " + seen.join(", ");
}</script>"#;

fn title_after_use(folder: &Path, page: &str) -> String {
    let path = folder.join(page);
    let html = std::fs::read_to_string(&path).unwrap().replace("</body>", &format!("{USER}</body>"));
    std::fs::write(&path, html).unwrap();
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,1500", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("file://{}", path.display()))
        .output()
        .expect("chromium runs");
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, rest) = dom.split_once("<title>").unwrap_or_else(|| panic!("no page: {output:?}"));
    rest.split_once("</title>").unwrap().0.to_owned()
}

#[test]
fn a_user_can_click_zoom_pan_find_and_use_the_keyboard() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect_both(at, "trace --model resnet20 --batch 2 --image 16 -o a.trace", 0);
    expect_both(at, "plan a.trace --memory 50% --evaluations 5 -o a.plan", 0);
    expect_both(at, "report a.trace a.plan -o a.html", 0);
    expect_both(at, "report a.trace -o b.html", 0);
    for page in ["a.html", "b.html"] {
        assert_eq!(
            title_after_use(at, page),
            "seen: figures, key selects, next, zoomed, panned, all, found, click selects, theme"
        );
    }
}
