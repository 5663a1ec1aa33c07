import Classifier

let tokens = CommandLine.arguments.dropFirst().compactMap { Int64($0) }
print(try Classifier().scores(tokens))
