"""An arc-standard parser: actions are tokens, and hypotheses with the same stack and buffer are merged."""

from math import exp, inf, log

import bestfirst

END, SHIFT, LEFT, RIGHT = range(4)
HEADS = {"V": "", "N": "V", "P": "V", "D": "N", "A": "N"}  # the usual tag of a word's head, by the word's tag


class Parser:
    """Scores an arc higher if the tags fit `HEADS`, and if the words are closer together."""

    eos = END

    def start(self, source):
        return source

    def max_length(self, source):
        return 2 * len(source)

    def state(self, words, actions):
        stack, buffer, arcs = [], 0, []
        for action in actions:
            if action == SHIFT:
                stack.append(buffer)
                buffer += 1
            else:
                head, child = (stack[-1], stack[-2]) if action == LEFT else (stack[-2], stack[-1])
                stack.remove(child)
                arcs.append((head, child))
        return tuple(stack), buffer, arcs

    def merge_key(self, source, prefix):
        stack, buffer, _ = self.state(source, prefix)
        return stack, buffer  # later actions do not depend on the arcs that were built

    def arc(self, words, head, child):
        return 1.5 * (HEADS[words[child][1]] == words[head][1]) - 0.3 * abs(head - child)

    def row(self, words, actions):
        stack, buffer, _ = self.state(words, actions)
        if buffer == len(words) and len(stack) == 1:
            return [0.0, -inf, -inf, -inf]
        scores = [-inf, 0.0 if buffer < len(words) else -inf, -inf, -inf]
        if len(stack) > 1:
            scores[LEFT], scores[RIGHT] = self.arc(words, stack[-1], stack[-2]), self.arc(words, stack[-2], stack[-1])
        total = log(sum(map(exp, scores)))
        return [score - total for score in scores]

    def score(self, batch):
        return [(self.row(words, actions), words) for words, actions in batch]

    def text(self, source, tokens):
        arcs = self.state(source, [token for token in tokens if token != END])[2]
        return ", ".join(f"{source[child][0]} < {source[head][0]}" for head, child in sorted(arcs))


if __name__ == "__main__":
    tagged = [tuple(pair.split("/")) for pair in ["the/D", "old/A", "dog/N", "saw/V", "a/D", "man/N"]]
    for beam in (1, 4, 16):
        (result,) = bestfirst.decode(Parser(), [tagged], beam=beam)
        print(f"beam {beam}: {result.hypotheses[0].score:.3f}, {result.calls} calls: {result.text}")
