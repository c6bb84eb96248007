//! Common factors of the terms of a sum. Most sums are dot products of two vectors. The panel names these vectors once
//! for all terms.

use llama_trace_core::trace::explanation::Term;
use llama_trace_core::trace::{Address, Subject};

use super::super::derivation_queries::address_of;

/// A vector whose components are one factor of every term.
#[derive(Clone, Debug, PartialEq)]
pub struct Factor {
    /// The vector's address, with the indices that all terms share.
    pub address: Address,
    /// Letters of the axes on which the terms differ.
    pub runs: Vec<char>,
}

/// The common factors of most terms of a sum; none if the terms have too little in common.
pub fn factors(terms: &[Term]) -> Option<Vec<Factor>> {
    let pattern = terms.iter().max_by_key(|term| term.operands.len()).filter(|_| terms.len() > 2)?;
    let alike: Vec<&Term> = terms.iter().filter(|term| is_alike(term, pattern)).collect();
    if alike.len() * 4 < terms.len() * 3 || pattern.operands.len() < 2 {
        return None;
    }
    let factor = |n: usize| {
        let addresses: Option<Vec<&Address>> =
            alike.iter().map(|term| address_of(&term.operands[n])).collect();
        let (first, rest) =
            addresses?.split_first().map(|(first, rest)| ((*first).clone(), rest.to_vec()))?;
        let shared = |at: &(char, usize)| rest.iter().all(|other| other.index.contains(at));
        let (index, runs): (Vec<_>, Vec<_>) = first.index.iter().copied().partition(shared);
        let runs = runs.into_iter().map(|(letter, _)| letter).collect();
        Some(Factor { address: Address { index, ..first }, runs })
    };
    (0..pattern.operands.len()).map(factor).collect()
}

/// Returns whether the term is a product of the common factors.
pub fn fits(term: &Term, factors: &[Factor]) -> bool {
    term.operands.len() == factors.len()
        && term.operands.iter().zip(factors).all(|(operand, factor)| {
            address_of(operand).is_some_and(|address| {
                place(address) == place(&factor.address)
                    && factor.address.index.iter().all(|at| address.index.contains(at))
            })
        })
}

/// The indices in which a term differs from the others, each index once: number of the factor, letter, index.
pub fn differing(term: &Term, factors: &[Factor]) -> Vec<(usize, char, usize)> {
    let mut indices: Vec<(usize, char, usize)> = Vec::new();
    for (n, (operand, factor)) in term.operands.iter().zip(factors).enumerate() {
        let Some(address) = address_of(operand) else { continue };
        for &(letter, index) in address.index.iter().filter(|(letter, _)| factor.runs.contains(letter)) {
            if !indices.iter().any(|(_, other, at)| (*other, *at) == (letter, index)) {
                indices.push((n, letter, index));
            }
        }
    }
    indices
}

fn is_alike(term: &Term, other: &Term) -> bool {
    term.operands.len() == other.operands.len()
        && term.operands.iter().zip(&other.operands).all(|(one, other)| {
            match (address_of(one), address_of(other)) {
                (Some(one), Some(other)) => place(one) == place(other),
                _ => false,
            }
        })
}

fn place(address: &Address) -> (Option<usize>, Option<usize>, Option<Subject>) {
    (address.pass, address.layer, address.subject)
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::trace::explanation::{From, Operand};

    fn term(addresses: &[&str]) -> Term {
        let operand = |text: &&str| Operand { from: From::Stage(Address::parse(text).unwrap()), value: 1.0 };
        Term { operands: addresses.iter().map(operand).collect(), product: 1.0 }
    }

    #[test]
    fn what_terms_share_is_named_once() {
        let terms: Vec<Term> = (0..4)
            .map(|c| term(&[&format!("p0/L0/xq[t=1,h=0,c={c}]"), &format!("p0/L0/keys[k=2,h=0,c={c}]")]))
            .collect();
        let factors = factors(&terms).unwrap();
        assert_eq!(factors[0].address, Address::parse("p0/L0/xq[t=1,h=0]").unwrap());
        assert_eq!((factors[0].runs.clone(), factors[1].runs.clone()), (vec!['c'], vec!['c']));
        assert!(fits(&terms[3], &factors));
        assert_eq!(differing(&terms[3], &factors), [(0, 'c', 3)]);
        assert!(!fits(&term(&["p0/L1/xq[t=1,h=0,c=0]", "p0/L0/keys[k=2,h=0,c=0]"]), &factors));
    }

    #[test]
    fn terms_of_one_operand_each_share_nothing() {
        assert_eq!(
            factors(&[term(&["p0/L0/attn_residual[t=1,d=0]"]), term(&["p0/L0/ffn_down[t=1,d=0]"])]),
            None
        );
    }
}
