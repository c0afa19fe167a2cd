//! Chromium without a window, which obeys the DevTools protocol over two pipes: messages of JSON, each with a zero byte behind it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

/// A browser with one tab.
pub struct Browser {
    process: Child,
    to: File,
    from: BufReader<File>,
    session: String,
    sent: u64,
    /// What the page reported since it was opened: uncaught errors and the end of loading among others.
    events: Vec<Value>,
}

impl Browser {
    /// Starts the browser, whose profile and pipes lie in this folder.
    pub fn start(folder: &Path) -> Self {
        let [to, from] = ["to", "from"].map(|name| folder.join(name));
        let made = Command::new("mkfifo").args([&to, &from]).status().expect("mkfifo runs");
        assert!(made.success());
        let process = Command::new("sh")
            .arg("-c")
            .arg("exec chromium --headless --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir=\"$1\" about:blank 3<\"$2\" 4>\"$3\"")
            .arg("sh")
            .args([&folder.join("profile"), &to, &from])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromium runs");
        // Opening a pipe waits for its other end; the shell opens them in this order.
        let to = File::options().write(true).open(&to).unwrap();
        let from = BufReader::new(File::open(&from).unwrap());
        let mut browser = Self { process, to, from, session: String::new(), sent: 0, events: Vec::new() };
        let targets = browser.call("Target.getTargets", json!({}));
        let tab = targets["targetInfos"].as_array().unwrap().iter().find(|target| target["type"] == "page");
        let tab = json!({ "targetId": tab.unwrap()["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", tab);
        session["sessionId"].as_str().unwrap().clone_into(&mut browser.session);
        browser.call("Page.enable", json!({}));
        browser.call("Runtime.enable", json!({}));
        browser
    }

    fn receive(&mut self) -> Value {
        let mut message = Vec::new();
        self.from.read_until(0, &mut message).unwrap();
        assert_eq!(message.pop(), Some(0), "chromium ended");
        serde_json::from_slice(&message).unwrap()
    }

    /// Calls a method of the protocol and returns its result.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.sent += 1;
        let mut message = json!({ "id": self.sent, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut answer = self.receive();
            if answer["id"] == self.sent {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    /// Opens a page in a window of this size and waits until it is drawn. A page with an error fails the test.
    pub fn open(&mut self, url: &str, width: u32, height: u32) {
        let window = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", window);
        self.events.clear();
        self.call("Page.navigate", json!({ "url": url }));
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.receive();
            self.events.push(event);
        }
        self.run("new Promise(drawn => requestAnimationFrame(() => setTimeout(drawn, 0)))");
        self.expect_no_error();
    }

    /// The value of an expression, or of what it promises.
    #[track_caller]
    pub fn run(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].take()
    }

    /// Fails if the page threw an error that nothing caught.
    #[track_caller]
    pub fn expect_no_error(&self) {
        let thrown = self.events.iter().find(|event| event["method"] == "Runtime.exceptionThrown");
        assert!(thrown.is_none(), "{}", thrown.unwrap());
    }

    /// Moves the pointer to a point of the window; with `press`, presses and releases the button there.
    pub fn point(&mut self, [x, y]: [f64; 2], press: bool) {
        let mut send = |kind: &str, button: &str| {
            let event = json!({ "type": kind, "x": x, "y": y, "button": button, "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event);
        };
        send("mouseMoved", "none");
        if press {
            send("mousePressed", "left");
            send("mouseReleased", "left");
        }
    }

    /// Turns the wheel at a point of the window.
    pub fn wheel(&mut self, [x, y]: [f64; 2], turn: f64) {
        let event = json!({ "type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": turn });
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Presses a key. Keys of one character type it.
    pub fn key(&mut self, key: &str) {
        let text = if key.chars().count() == 1 { key } else { "" };
        let code = match key {
            "Tab" => 9,
            "Escape" => 27,
            "ArrowLeft" => 37,
            "ArrowRight" => 39,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event = json!({ "type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// What the window shows, as the bytes of a PNG file.
    pub fn picture(&mut self) -> Vec<u8> {
        let answer = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        decode(answer["data"].as_str().unwrap())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Decodes base 64.
fn decode(text: &str) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |byte: u8| DIGITS.iter().position(|&d| d == byte).map(|n| n as u32);
    let (mut bytes, mut bits, mut kept) = (Vec::new(), 0, 0u32);
    for n in text.bytes().filter_map(digit) {
        (bits, kept) = (bits + 6, kept << 6 | n);
        if bits >= 8 {
            bits -= 8;
            bytes.push((kept >> bits) as u8);
            kept &= (1 << bits) - 1;
        }
    }
    bytes
}
