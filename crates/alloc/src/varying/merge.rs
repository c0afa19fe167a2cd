//! A plan's profile together with an iteration that the plan did not serve as a whole.
//!
//! An iteration with more requests than the profile becomes the profile. One with as many is compared request by request. Of a shorter one, requests that were larger than their position's make it
//! larger, and requests without a position get one where they occurred. Lifetimes are the longest that were observed.

use std::cmp::Ordering;

use crate::record::ProfiledRequest;
use crate::request::Request;

use super::observed::Seen;

/// A profile, and the positions of the iteration's requests in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    pub profile: Vec<ProfiledRequest>,
    pub places: Vec<u32>,
}

fn larger(one: Request, other: Request) -> Request {
    Request::new(one.size.max(other.size), one.align.max(other.align))
}

/// The profile after an iteration.
pub fn merged(profile: &[ProfiledRequest], seen: &[Seen]) -> Merged {
    let mut merged = match seen.len().cmp(&profile.len()) {
        Ordering::Less => extended(profile, seen),
        Ordering::Equal => compared(profile, seen),
        Ordering::Greater => replaced(profile, seen),
    };
    let last = merged.places.last().map_or(0, |&place| place as usize);
    for (index, observed) in seen.iter().enumerate() {
        let end = index + observed.span as usize;
        if observed.span == 0 || end > seen.len() {
            continue;
        }
        // A block that is freed after the last request is alive at that request's position, and at none of those that were left out.
        let end = merged.places.get(end).map_or(last + 1, |&place| place as usize);
        let place = merged.places[index] as usize;
        let span = end.saturating_sub(place).max(1);
        let entry = &mut merged.profile[place];
        entry.span = Some(entry.span.map_or(span, |known| known.max(span)));
    }
    merged
}

/// The iteration as the profile. Of the old one, the ends of lifetimes in the next iteration are kept.
fn replaced(profile: &[ProfiledRequest], seen: &[Seen]) -> Merged {
    let (old, new) = (profile.len(), seen.len());
    let entry = |(index, observed): (usize, &Seen)| {
        let known = profile.get(observed.at as usize).filter(|_| observed.matched);
        let wrapped = known.and_then(|known| (observed.at as usize + known.span?).checked_sub(old));
        let span = wrapped.filter(|&end| end > 0 && observed.span == 0).map(|end| new - index + end);
        ProfiledRequest { request: observed.request, span: span.filter(|&span| span <= new) }
    };
    Merged { profile: seen.iter().enumerate().map(entry).collect(), places: (0..new as u32).collect() }
}

/// The profile with the sizes of an iteration of as many requests: the λ-th is the λ-th, whatever it was matched with.
fn compared(profile: &[ProfiledRequest], seen: &[Seen]) -> Merged {
    let entry = |(entry, observed): (&ProfiledRequest, &Seen)| ProfiledRequest {
        request: larger(entry.request, observed.request),
        span: entry.span,
    };
    Merged {
        profile: profile.iter().zip(seen).map(entry).collect(),
        places: (0..seen.len() as u32).collect(),
    }
}

/// The profile with the requests that it lacks.
fn extended(profile: &[ProfiledRequest], seen: &[Seen]) -> Merged {
    let n = profile.len();
    // For each request, the next position that a request is matched with.
    let mut following = vec![n; seen.len()];
    let mut next = n;
    for (following, observed) in following.iter_mut().zip(seen).rev() {
        *following = next;
        if observed.matched {
            next = observed.at as usize;
        }
    }
    let mut new: Vec<ProfiledRequest> = Vec::with_capacity(n);
    let mut new_of_old = vec![0; n + 1];
    let mut copied = 0;
    let mut places = Vec::with_capacity(seen.len());
    let copy_to =
        |new: &mut Vec<ProfiledRequest>, new_of_old: &mut [usize], copied: &mut usize, end: usize| {
            while *copied < end {
                new_of_old[*copied] = new.len();
                new.push(profile[*copied]);
                *copied += 1;
            }
        };
    for (observed, &following) in seen.iter().zip(&following) {
        let at = observed.at as usize;
        if at >= copied && at < n && (observed.matched || at < following) {
            copy_to(&mut new, &mut new_of_old, &mut copied, at + 1);
            if let Some(last) = new.last_mut() {
                last.request = larger(last.request, observed.request);
            }
        } else {
            new.push(ProfiledRequest { request: observed.request, span: None });
        }
        places.push(new.len() as u32 - 1);
    }
    copy_to(&mut new, &mut new_of_old, &mut copied, n);
    new_of_old[n] = new.len();
    for (old, entry) in profile.iter().enumerate() {
        let Some(span) = entry.span else { continue };
        let (place, end) = (new_of_old[old], old + span);
        let end = if end <= n { new_of_old[end] } else { new.len() + new_of_old[(end - n).min(n)] };
        new[place].span = Some((end - place).max(1)).filter(|&span| span <= new.len());
    }
    Merged { profile: new, places }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(entries: &[(usize, usize)]) -> Vec<ProfiledRequest> {
        let entry = |&(size, span)| ProfiledRequest { request: Request::new(size, 64), span: Some(span) };
        entries.iter().map(entry).collect()
    }

    fn seen(size: usize, at: u32, matched: bool, span: u32) -> Seen {
        Seen { request: Request::new(size, 64), at, matched, span }
    }

    #[test]
    fn a_longer_iteration_becomes_the_profile() {
        let before = profile(&[(10, 1), (20, 2)]);
        let seen = [seen(10, 0, true, 2), seen(15, 1, true, 0), seen(30, 2, false, 1)];
        let merged = merged(&before, &seen);
        assert_eq!(merged.places, [0, 1, 2]);
        // The second block ends one request into the next iteration, as before.
        assert_eq!(merged.profile, profile(&[(10, 2), (15, 3), (30, 1)]));
    }

    #[test]
    fn a_request_that_the_profile_lacks_is_inserted_where_it_occurred() {
        let before = profile(&[(10, 3), (20, 1), (30, 1), (40, 2)]);
        let seen = [seen(10, 0, true, 3), seen(77, 1, false, 1), seen(20, 1, true, 1)];
        let merged = merged(&before, &seen);
        assert_eq!(merged.places, [0, 1, 2]);
        let sizes: Vec<usize> = merged.profile.iter().map(|entry| entry.request.size).collect();
        assert_eq!(sizes, [10, 77, 20, 30, 40]);
        let spans: Vec<usize> = merged.profile.iter().map(|entry| entry.span.unwrap()).collect();
        // The first block's lifetime ends where the fourth request was; the last one's, one request into the next iteration.
        assert_eq!(spans, [4, 1, 1, 1, 3]);
    }

    #[test]
    fn a_larger_request_makes_its_position_larger() {
        let before = profile(&[(10, 1), (20, 1), (30, 1)]);
        let seen = [seen(10, 0, true, 1), seen(25, 1, false, 1), seen(30, 2, true, 1)];
        let merged = merged(&before, &seen);
        assert_eq!(merged.profile, profile(&[(10, 1), (25, 1), (30, 1)]));
    }
}
