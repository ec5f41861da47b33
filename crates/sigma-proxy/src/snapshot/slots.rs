//! Numbered values, in pages that generations of a configuration share.

use std::sync::Arc;

/// Values per page: a change copies one page of pointers.
const PAGE: usize = 128;

type Page<T> = [Option<Arc<T>>; PAGE];

/// A table by number. A copy costs one pointer per page; a change, one page.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    pages: Vec<Arc<Page<T>>>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { pages: Vec::new() }
    }
}

impl<T> Clone for Slots<T> {
    fn clone(&self) -> Self {
        Slots { pages: self.pages.clone() }
    }
}

impl<T> Slots<T> {
    /// Returns the value with this number.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Arc<T>> {
        let number = number as usize;
        self.pages.get(number / PAGE)?[number % PAGE].as_ref()
    }

    /// Sets or removes the value of a number.
    pub(crate) fn set(&mut self, number: u32, value: Option<Arc<T>>) {
        let number = number as usize;
        while self.pages.len() <= number / PAGE {
            self.pages.push(Arc::new([const { None }; PAGE]));
        }
        let page = &mut self.pages[number / PAGE];
        match Arc::get_mut(page) {
            Some(page) => page[number % PAGE] = value,
            None => {
                let mut copy = Page::clone(page);
                copy[number % PAGE] = value;
                *page = Arc::new(copy);
            }
        }
    }

    /// Returns all values, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Arc<T>)> {
        let all = self.pages.iter().flat_map(|page| page.iter());
        (0u32..).zip(all).filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }
}

/// Hands out numbers, the smallest free one first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers {
    free: std::collections::BTreeSet<u32>,
    next: u32,
}

impl Numbers {
    /// A number that nothing has.
    pub(crate) fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Takes a number back.
    pub(crate) fn give(&mut self, number: u32) {
        self.free.insert(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_share_and_do_not_mix() {
        let mut first = Slots::default();
        (0..300).for_each(|n| first.set(n, Some(Arc::new(n))));
        let mut second = first.clone();
        second.set(5, None);
        second.set(999, Some(Arc::new(7)));
        assert_eq!(first.get(5).map(|n| **n), Some(5));
        assert_eq!((second.get(5), second.get(999).map(|n| **n), second.get(5000)), (None, Some(7), None));
        assert!(Arc::ptr_eq(&first.pages[1], &second.pages[1]));
        assert_eq!((first.iter().count(), second.iter().count()), (300, 300));
    }

    #[test]
    fn numbers_come_back() {
        let mut numbers = Numbers::default();
        assert_eq!((numbers.take(), numbers.take(), numbers.take()), (0, 1, 2));
        numbers.give(1);
        assert_eq!((numbers.take(), numbers.take()), (1, 3));
    }
}
