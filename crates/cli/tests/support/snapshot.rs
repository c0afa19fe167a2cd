//! Memory snapshots of PyTorch's allocator, made up.

/// The events of one device as a pickle of protocol 2: (allocation, address, bytes, microseconds, line of the program).
pub fn pickle(events: &[(bool, u64, u64, u64, &str)]) -> Vec<u8> {
    let mut out = vec![0x80, 2];
    let text = |out: &mut Vec<u8>, text: &str| {
        out.push(b'X');
        out.extend((text.len() as u32).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let number = |out: &mut Vec<u8>, number: u64| {
        out.extend([0x8a, 9]);
        out.extend(number.to_le_bytes());
        out.push(0);
    };
    let dict = |out: &mut Vec<u8>, fill: &dyn Fn(&mut Vec<u8>)| {
        out.extend(b"}(");
        fill(out);
        out.push(b'u');
    };
    let list = |out: &mut Vec<u8>, fill: &dyn Fn(&mut Vec<u8>)| {
        out.extend(b"](");
        fill(out);
        out.push(b'e');
    };
    dict(&mut out, &|out| {
        text(out, "segments");
        out.push(b']');
        text(out, "device_traces");
        list(out, &|out| {
            list(out, &|out| {
                for &(is_alloc, address, bytes, time, line) in events {
                    dict(out, &|out| {
                        text(out, "action");
                        text(out, if is_alloc { "alloc" } else { "free_completed" });
                        for (key, value) in [("addr", address), ("size", bytes), ("time_us", time)] {
                            text(out, key);
                            number(out, value);
                        }
                        text(out, "frames");
                        list(out, &|out| {
                            dict(out, &|out| {
                                text(out, "filename");
                                text(out, "model.py");
                                text(out, "line");
                                number(out, line.bytes().map(u64::from).sum());
                                text(out, "name");
                                text(out, line);
                            });
                        });
                    });
                }
            });
        });
    });
    out.push(b'.');
    out
}

/// Events of each block of [`of_blocks`].
#[allow(dead_code, reason = "not every test has a history of this form")]
pub const EVENTS_OF_A_BLOCK: u64 = 10;

/// A history of blocks of five layers each, whose activations are freed in the order in which a backward pass frees them.
#[allow(dead_code, reason = "not every test has a history of this form")]
pub fn of_blocks(blocks: u64) -> Vec<u8> {
    let mut events = Vec::new();
    for block in 0..blocks {
        let layers = ["conv", "norm", "act", "attention", "linear"].into_iter().enumerate();
        let layer = |(i, line): (usize, &'static str)| {
            let address = (block * 5 + i as u64 + 1) << 32;
            (address, (1 + i as u64) << 20, line)
        };
        let layers: Vec<_> = layers.map(layer).collect();
        let mut push = |is_alloc, &(address, bytes, line): &(u64, u64, &'static str)| {
            events.push((is_alloc, address, bytes, 10 * events.len() as u64, line));
        };
        layers.iter().for_each(|layer| push(true, layer));
        layers.iter().rev().for_each(|layer| push(false, layer));
    }
    pickle(&events)
}
