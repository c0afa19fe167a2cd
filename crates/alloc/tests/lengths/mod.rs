//! Programs whose iterations have different lengths: sentences of 10 to 50 words, one in each iteration. Shared by the tests of the sequence, of
//! the pools and of the preloaded library.

/// A client of an allocator. Blocks are known by their addresses.
pub trait Client {
    fn allocate(&mut self, size: usize) -> usize;
    fn free(&mut self, block: usize);
    fn mark(&mut self);
}

/// What varies with the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The number of steps; each has the same sizes (a recurrent network, word by word).
    Steps,
    /// The sizes; the number of requests is the same (a network that reads the whole sentence at once).
    Sizes,
    /// Both: a recurrent network whose embedding and output are of the whole sentence.
    Both,
}

/// In which order lengths come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Ascending,
    Random,
    /// Mostly short or long ones, hardly any between.
    Bimodal,
    /// From the shortest to the longest, again and again.
    Cycling,
}

pub const KINDS: [Kind; 3] = [Kind::Steps, Kind::Sizes, Kind::Both];
pub const ORDERS: [Order; 4] = [Order::Ascending, Order::Random, Order::Bimodal, Order::Cycling];
pub const ITERATIONS: usize = 300;

/// Iterations of which nothing is asked.
pub const WARM_UP: usize = 50;

/// The lengths of 300 iterations.
pub fn lengths(order: Order, seed: u64) -> Vec<usize> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |below: usize| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as usize % below
    };
    let mut lengths: Vec<usize> = (0..ITERATIONS)
        .map(|i| match order {
            Order::Ascending | Order::Random => 10 + random(41),
            Order::Bimodal if random(2) == 0 => 10 + random(5),
            Order::Bimodal => 44 + random(7),
            Order::Cycling => 10 + i % 41,
        })
        .collect();
    if order == Order::Ascending {
        lengths.sort_unstable();
    }
    lengths
}

/// A client that counts what is alive.
struct Counting<'a, C> {
    client: &'a mut C,
    live: usize,
    peak: usize,
}

impl<C: Client> Counting<'_, C> {
    fn allocate(&mut self, size: usize) -> (usize, usize) {
        self.live += size;
        self.peak = self.peak.max(self.live);
        (self.client.allocate(size), size)
    }

    fn free(&mut self, (block, size): (usize, usize)) {
        self.live -= size;
        self.client.free(block);
    }

    fn scratch(&mut self, size: usize) {
        let block = self.allocate(size);
        self.free(block);
    }
}

/// Runs one iteration. Returns its peak of live bytes.
pub fn iterate(kind: Kind, words: usize, width: usize, client: &mut impl Client) -> usize {
    let mut client = Counting { client, live: 0, peak: 0 };
    match kind {
        Kind::Steps => steps(words, width, &mut client),
        Kind::Sizes => sentence(words, width, &mut client),
        Kind::Both => {
            let embedding = client.allocate(words * width / 2 + 64);
            steps(words, width, &mut client);
            let gradient = client.allocate(words * width / 2 + 64);
            client.free(embedding);
            client.free(gradient);
        }
    }
    assert_eq!(client.live, 0);
    client.peak
}

/// Gates, cell and state of each word, output over the whole sentence, and back; at last an update of the weights.
fn steps<C: Client>(words: usize, width: usize, client: &mut Counting<'_, C>) {
    let mut kept = Vec::new();
    for _ in 0..words {
        let gates = client.allocate(4 * width);
        client.scratch(2 * width + 128);
        let cell = client.allocate(width);
        let state = client.allocate(width);
        kept.push([gates, cell, state]);
    }
    let output = client.allocate(5 * width + 640);
    client.scratch(5 * width + 704);
    let mut gradient = client.allocate(width);
    for saved in kept.into_iter().rev() {
        let of_gates = client.allocate(4 * width);
        let of_cell = client.allocate(width);
        saved.into_iter().for_each(|block| client.free(block));
        let next = client.allocate(width);
        client.free(gradient);
        client.free(of_cell);
        client.free(of_gates);
        gradient = next;
    }
    client.free(gradient);
    client.free(output);
    for weight in 1..5 {
        client.scratch(3 * weight * width + 192);
    }
}

/// Twelve layers, each over the whole sentence.
fn sentence<C: Client>(words: usize, width: usize, client: &mut Counting<'_, C>) {
    let size = |layer: usize, part: usize| words * width * (2 + layer * 7 % 5 + part) / 8;
    let mut kept = Vec::new();
    for layer in 0..12 {
        let activation = client.allocate(size(layer, 1));
        client.scratch(size(layer, 3));
        kept.push((activation, client.allocate(size(layer, 0))));
    }
    for (layer, (activation, normalized)) in kept.into_iter().enumerate().rev() {
        let gradient = client.allocate(size(layer, 1));
        client.scratch(size(layer, 2));
        client.free(normalized);
        client.free(activation);
        client.free(gradient);
    }
}
