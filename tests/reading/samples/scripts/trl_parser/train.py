"""A script with TRL's parser, whose options are in the classes that it is given."""

from trl import ScriptArguments, SFTConfig, SFTTrainer, TrlParser


def make_parser():
    types = (ScriptArguments, SFTConfig)
    return TrlParser(types)


if __name__ == "__main__":
    script_args, training_args = make_parser().parse_args_and_config()
    SFTTrainer(args=training_args).train()
