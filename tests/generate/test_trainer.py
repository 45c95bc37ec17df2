"""The drop-in inside `Seq2SeqTrainer`: a step of training, then an evaluation that generates."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

import bestfirst
from engine.builders import ARCHITECTURES

pytest.importorskip("accelerate")


class Pairs(Dataset):
    """Four inputs of one length, with their labels."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        ids = [4 + i, 5 + i, 6, 1]
        return {"input_ids": ids, "attention_mask": [1] * 4, "labels": ids[::-1]}


def test_seq2seq_trainer_evaluates_with_the_drop_in(tmp_path):
    """It passes `labels`, which Hugging Face ignores. A training step changes the weights and thus the outputs."""
    asked = {"max_new_tokens": 6, "num_beams": 3}
    arguments = Seq2SeqTrainingArguments(
        tmp_path, predict_with_generate=True, max_steps=1, learning_rate=0.5, use_cpu=True, report_to=[], disable_tqdm=True
    )
    trainer = Seq2SeqTrainer(ARCHITECTURES["marian"].build(), arguments, train_dataset=Pairs(), eval_dataset=Pairs())

    def outputs(**route):
        return trainer.predict(Pairs(), **asked, **route).predictions

    seen = []
    for _ in range(2):
        stats = bestfirst.Stats()
        ours = outputs(custom_generate=bestfirst.generate, stats=stats)
        assert stats.engine == "host"
        assert np.array_equal(ours, outputs())
        seen.append(ours)
        trainer.train()
    assert not np.array_equal(*seen)
