//! Patterns of names, as users write them.

/// Whether a pattern matches a text as a whole: `*` stands for any characters, and the byte `one`, if there is any, for exactly one. Linear in
/// practice: after a `*` that matched too little it continues there.
pub fn matches(pattern: &str, text: &str, one: Option<u8>) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut read) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while read < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(&byte) if Some(byte) == one || byte == text[read] => {
                at += 1;
                read += 1;
            }
            _ => match star {
                Some((place, from)) => {
                    star = Some((place, from + 1));
                    at = place + 1;
                    read = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name) in
            [("x1", "x1"), ("x*", "x12"), ("*", ""), ("*pool*", "max_pool2d"), ("a*b*c", "a--b-c")]
        {
            assert!(matches(pattern, name, None), "{pattern} {name}");
        }
        for (pattern, name) in
            [("x1", "x12"), ("x1*2", "x2"), ("*pool", "pooling"), ("a*ba", "aba-"), ("aa*aa", "aaa")]
        {
            assert!(!matches(pattern, name, None), "{pattern} {name}");
        }
    }

    #[test]
    fn one_character_stands_for_another_only_if_it_is_meant_to() {
        assert!(matches("x?", "x1", Some(b'?')) && matches("x?", "x?", None));
        assert!(!matches("x?", "x1", None) && !matches("x?", "x", Some(b'?')));
    }
}
