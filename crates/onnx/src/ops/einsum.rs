//! `Einsum` of two tensors: a product of a batch of matrices, with axes joined and exchanged before and behind it.

use std::collections::{HashMap, HashSet};

use super::batched;
use crate::error::Refusal;
use crate::import::Import;
use crate::node::Node;
use crate::value::{Tensor, Value};

/// The letters of an equation, by what they are in the product `[batch, rows, summed] · [batch, summed, columns]`.
#[derive(Debug, PartialEq)]
struct Equation {
    /// The axes of both tensors.
    operands: [Vec<char>; 2],
    /// The axes of the result.
    result: Vec<char>,
    /// Of both tensors and of the result.
    batch: Vec<char>,
    /// Of both tensors, and not of the result.
    summed: Vec<char>,
    /// Of the first tensor and of the result.
    rows: Vec<char>,
    /// Of the second tensor and of the result.
    columns: Vec<char>,
}

impl Equation {
    /// That of a text like `bij,bjk->bik`. `None` if it has another form, or an axis of one tensor alone that the result lacks.
    fn of(text: &str) -> Option<Self> {
        let (operands, result) = text.split_once("->")?;
        let (left, right) = operands.split_once(',')?;
        let [left, right, result] =
            [left, right, result].map(|letters| letters.chars().collect::<Vec<char>>());
        let are_axes = |letters: &Vec<char>| {
            let distinct: HashSet<&char> = letters.iter().collect();
            distinct.len() == letters.len() && letters.iter().all(char::is_ascii_alphabetic)
        };
        if ![&left, &right, &result].into_iter().all(are_axes) {
            return None;
        }
        let of_both = |letter: &char| left.contains(letter) && right.contains(letter);
        let (batch, summed) =
            left.iter().filter(|letter| of_both(letter)).partition(|letter| result.contains(letter));
        let own = |letters: &[char]| {
            letters.iter().copied().filter(|letter| !of_both(letter)).collect::<Vec<char>>()
        };
        let (rows, columns) = (own(&left), own(&right));
        let made = Self { batch, summed, rows, columns, operands: [left.clone(), right.clone()], result };
        let product: HashSet<char> = made.product().collect();
        (made.result.len() == product.len() && made.result.iter().all(|letter| product.contains(letter)))
            .then_some(made)
    }

    /// The axes of the product.
    fn product(&self) -> impl Iterator<Item = char> {
        self.batch.iter().chain(&self.rows).chain(&self.columns).copied()
    }
}

/// The places of some letters among others, which have them all.
fn places(wanted: impl Iterator<Item = char>, letters: &[char]) -> Vec<usize> {
    wanted.filter_map(|wanted| letters.iter().position(|&letter| letter == wanted)).collect()
}

/// `Einsum`
pub fn einsum(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let (name, text) = (node.name(), node.text("equation").unwrap_or_default().replace(' ', ""));
    let refuse = || {
        Refusal::from(format!(
            "its equation `{text}` is none of two tensors, with a letter for each axis, whose axes are in the result or in both"
        ))
    };
    let equation = Equation::of(&text).ok_or_else(refuse)?;
    let tensors = [import.tensor(node.required(0)?)?, import.tensor(node.required(1)?)?];
    let mut extents = HashMap::new();
    for (x, letters) in tensors.iter().zip(&equation.operands) {
        let dims = x.dims();
        if dims.len() != letters.len() {
            return Err(refuse());
        }
        for (&letter, extent) in letters.iter().zip(dims) {
            if extents.insert(letter, extent).is_some_and(|other| other != extent) {
                return Err(format!("axis {letter} has two extents").into());
            }
        }
    }
    let Equation { operands, result, batch, summed, rows, columns } = &equation;
    let mut matrices = |at: usize, parts: [&Vec<char>; 3]| {
        let order = places(parts.into_iter().flatten().copied(), &operands[at]);
        let dims = parts.map(|letters| letters.iter().map(|letter| extents[letter]).product());
        let x = Tensor { view: tensors[at].view.permuted(&order), ..tensors[at].clone() };
        import.reshaped(&format!("{name}.{at}"), x, &dims)
    };
    let a = matrices(0, [batch, rows, summed])?;
    let b = matrices(1, [batch, summed, columns])?;
    let y = batched::product(import, &name, a, b)?;
    let made: Vec<char> = equation.product().collect();
    let dims: Vec<usize> = made.iter().map(|letter| extents[letter]).collect();
    let y = import.reshaped(&name, y, &dims)?;
    let order = places(result.iter().copied(), &made);
    Ok(Value::Tensor(Tensor { view: y.view.permuted(&order), ..y }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_axes_of_a_product_or_the_equation_is_refused() {
        let parts = |text: &str| {
            let made = Equation::of(text)?;
            let joined = |letters: Vec<char>| letters.into_iter().collect::<String>();
            Some([made.batch, made.rows, made.summed, made.columns].map(joined))
        };
        let expected = |parts: [&str; 4]| Some(parts.map(str::to_owned));
        assert_eq!(parts("bij,bjk->bik"), expected(["b", "i", "j", "k"]));
        assert_eq!(parts("bchw,dc->bdhw"), expected(["", "bhw", "c", "d"]));
        assert_eq!(parts("i,j->ij"), expected(["", "i", "", "j"]));
        assert_eq!(parts("ij,ij->"), expected(["", "", "ij", ""]));
        for refused in
            ["ij->ji", "ij,jk", "ij,jk,kl->il", "ii,ij->j", "ij,jk->i", "ij,jk->ikl", "...ij,jk->...ik", ""]
        {
            assert_eq!(parts(refused), None, "{refused}");
        }
    }
}
